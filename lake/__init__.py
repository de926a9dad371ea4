"""Read and rewrite the log from the objects in the store, without brokers."""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.lake: the folder lake is not a top-level package")
if os.path.islink(__path__[0]):  # in a checkout, tools then report real paths
    __path__ = [os.path.realpath(__path__[0])]
