"""The Kafka wire protocol: convert bytes to typed messages and back. Pure: no sockets, no clock, no
asyncio.
"""
