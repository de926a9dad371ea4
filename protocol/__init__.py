"""The Kafka protocol: messages, record batches, error codes. No sockets, no clock, no asyncio."""

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.protocol: the folder protocol is no package of its own")
