"""Bytes in memory: recent batches of all streams, and blocks of objects that were read."""
