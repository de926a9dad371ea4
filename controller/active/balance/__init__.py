"""Leader balancing: collect measured loads, find slow brokers, and derive moves. See
docs/design/balancing.md.
"""
