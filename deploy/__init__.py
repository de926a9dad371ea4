"""The `penstock` command, node processes, the local cluster, and the demo."""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.deploy: the folder deploy is not a top-level package")
if os.path.islink(__path__[0]):  # in a checkout, tools then report real paths
    __path__ = [os.path.realpath(__path__[0])]
