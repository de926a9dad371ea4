"""Numbered append-only streams on object storage: formats, WAL, caches, upload and readers.
Independent of Kafka's API and of gRPC.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.stream: the folder stream is not a top-level package")
if os.path.islink(__path__[0]):  # in a checkout, tools then report real paths
    __path__ = [os.path.realpath(__path__[0])]
