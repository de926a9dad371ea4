"""Provide what every package needs: clocks, backoff, ids, settings, listeners, histograms. Imports
no other package of this project.
"""

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.base: the folder base is no package of its own")
