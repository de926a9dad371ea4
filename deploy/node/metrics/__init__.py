"""Prometheus metrics of nodes (docs/design/observability.md): one table of metrics, a reader for
each role, and `/metrics`.
"""
