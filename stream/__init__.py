"""Implement numbered append-only streams on objects: formats, WAL, caches, upload, readers. Must
not know Kafka's API or gRPC.
"""

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.stream: the folder stream is no package of its own")
