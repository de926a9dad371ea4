"""What nodes tell Prometheus (ADR 0028): one table of metrics, a reader for each role, the text at
`/metrics`.
"""
