"""The metadata of the cluster: records, the image built from them, and snapshots. This is the
public part of the controller for brokers.
"""
