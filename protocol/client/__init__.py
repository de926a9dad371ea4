"""Clients of the Kafka protocol: one for threads, one for asyncio. One request at a time on each
connection: not for throughput.
"""
