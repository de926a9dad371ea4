"""What nodes tell Prometheus (docs/design/observability.md): one table of metrics, a reader for
each role, the text at `/metrics`.
"""
