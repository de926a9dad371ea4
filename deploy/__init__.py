"""Everything about running it: the `penstock` command, the local cluster, the demo."""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.deploy: the folder deploy is no package of its own")
if os.path.islink(__path__[0]):  # in a checkout: tools see the files where they are edited
    __path__ = [os.path.realpath(__path__[0])]
