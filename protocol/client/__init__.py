"""Clients of the Kafka protocol, one for threads and one for asyncio. Each connection has one
request in flight, so they are not meant for high throughput.
"""
