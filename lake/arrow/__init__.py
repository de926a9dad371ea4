"""Read partitions as Arrow columns from the store, without a broker. Requires the `reader` extra
(pyarrow; numba for speed).

Importing this package does not import them: planners and drivers use its submodules without Arrow.
Programs import `scan` from `penstock`.
"""
