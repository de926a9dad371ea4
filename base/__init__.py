"""Basics shared by all packages: clocks, backoff, ids, settings, listeners, histograms. Imports no
other package of this project.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.base: the folder base is not a top-level package")
if os.path.islink(__path__[0]):  # in a checkout, tools then report real paths
    __path__ = [os.path.realpath(__path__[0])]
