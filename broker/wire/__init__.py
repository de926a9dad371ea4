"""The Kafka wire protocol: bytes to typed messages and back. Pure: no sockets, no clock, no
asyncio.
"""
