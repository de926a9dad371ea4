"""Define the metadata of the cluster: records, the image they add up to, and snapshots. This is the
public half of the controller for brokers.
"""
