"""Implement numbered append-only streams on objects: formats, WAL, caches, upload, readers. Must
not know Kafka's API or gRPC.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.stream: the folder stream is no package of its own")
if os.path.islink(__path__[0]):  # in a checkout: tools see the files where they are edited
    __path__ = [os.path.realpath(__path__[0])]
