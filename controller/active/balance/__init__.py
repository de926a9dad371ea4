"""Balance leaders: collect the load that brokers measure, find slow brokers, and derive moves.
docs/design/balancing.md.
"""
