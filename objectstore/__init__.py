"""Store bytes by key: one small port over S3, a local directory and memory. Must not know streams
or Kafka.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError(
        "import penstock.objectstore: the folder objectstore is no package of its own"
    )
if os.path.islink(__path__[0]):  # in a checkout: tools see the files where they are edited
    __path__ = [os.path.realpath(__path__[0])]
