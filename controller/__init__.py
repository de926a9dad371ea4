"""The metadata quorum: records, image, managers, journal, and the gRPC services for brokers."""

import os

if not __name__.startswith("penstock."):
    raise ImportError(
        "import penstock.controller: the folder controller is not a top-level package"
    )
# In a checkout, resolve the package path so that tools open the real files, not the symlinks.
if os.path.islink(__path__[0]):
    __path__ = [os.path.realpath(__path__[0])]
