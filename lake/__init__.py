"""Read and rewrite the log without brokers: from the objects in the store alone."""
