"""Leader balancing: collect measured loads, detect slow brokers, and derive moves. See
docs/design/balancing.md.
"""
