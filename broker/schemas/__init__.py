"""Schema validation of records, as configured per topic.

Untrusted records and schemas are decoded only in a separate process, `worker`, with CPU and memory
limits. Everything else in this package runs in the broker.
"""
