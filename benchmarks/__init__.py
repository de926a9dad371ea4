"""Benchmarks with their targets: `make bench`. docs/performance.md has the results,
benchmarks/notes the lab notebook.
"""
