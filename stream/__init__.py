"""Implement numbered append-only streams on objects: formats, WAL, caches, upload, readers. Must
not know Kafka's API or gRPC.
"""
