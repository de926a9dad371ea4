"""Validation of records against the schemas of their topics.

Untrusted records and schemas are decoded in a separate process, `worker`, with CPU and memory
limits. Everything else here runs in the broker.
"""
