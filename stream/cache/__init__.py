"""Cache bytes in memory: recent batches of all streams, and blocks that were read from objects."""
