"""Serve the tails of partitions with other leaders to consumers in the rack of this broker
(KIP-392).
"""
