"""Read partitions as Arrow columns from the store, without a broker. Needs the `reader` extra
(pyarrow; numba for speed).

Importing this package imports neither: planners and drivers use its submodules without Arrow.
Programs import `scan` from `penstock`.
"""
