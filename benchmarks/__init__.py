"""Benchmarks with their targets: `make bench`. docs/performance.md contains the results,
benchmarks/notes the lab notebook.
"""
