"""In-memory caches: recent batches of all streams, and blocks read from objects."""
