"""Read and rewrite the log from the objects in the store, without brokers."""

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.lake: the folder lake is no package of its own")
