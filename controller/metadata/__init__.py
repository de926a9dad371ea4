"""The metadata of the cluster: records, the image built from them, and snapshots. Brokers may
import this package.
"""
