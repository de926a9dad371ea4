"""What the cluster knows: records, the image they add up to, snapshots. The public half of the
controller for brokers.
"""
