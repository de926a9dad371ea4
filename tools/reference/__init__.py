"""Generators of the pages under `docs/reference/` that describe the command line, the Kafka APIs
and the errors.
"""
