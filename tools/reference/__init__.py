"""Generators of the pages under `docs/reference/` about the command line, the Kafka APIs and the
errors.
"""
