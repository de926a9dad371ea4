"""Read and rewrite the log from the objects in the store, without brokers."""
