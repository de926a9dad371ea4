"""Object storage: one small port, implemented for S3, Google Cloud Storage, Azure, directories and
memory. Independent of streams and Kafka.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError(
        "import penstock.objectstore: the folder objectstore is not a top-level package"
    )
if os.path.islink(__path__[0]):  # in a checkout, tools then report real paths
    __path__ = [os.path.realpath(__path__[0])]
