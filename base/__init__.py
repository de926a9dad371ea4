"""Common basics of all packages: clocks, backoff, ids, settings, listeners, histograms. Imports no
other package of this project.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.base: the folder base is no package of its own")
if os.path.islink(__path__[0]):  # in a checkout, tools see the files where they are edited
    __path__ = [os.path.realpath(__path__[0])]
