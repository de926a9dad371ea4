"""Check the records of producers against the schemas of their topics.

The decoding of records and schemas that others wrote runs in a process of its own, `worker`, with
limits for CPU and memory. Everything else here runs in the broker.
"""
