"""Serve the tails of partitions that other brokers lead, to consumers in the rack of this broker
(KIP-392).
"""
