"""The broker: connections, request handlers, partitions, groups and transactions. All persistent
state is in the object store.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.broker: the folder broker is not a top-level package")
# makes tools open the files in the checkout instead of the symlinks
if os.path.islink(__path__[0]):
    __path__ = [os.path.realpath(__path__[0])]
