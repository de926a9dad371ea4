"""Numbered append-only streams on objects: formats, WAL, caches, upload, readers. Knows no Kafka
API and no gRPC.
"""
