"""Read partitions as Arrow columns straight from the store, without a broker. Needs the extra
`reader` (pyarrow; numba for speed).

Importing this package imports neither: `slices` and `errors` serve planners and drivers too.
Programs import `scan` from `penstock`.
"""
