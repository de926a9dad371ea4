"""Serve the tails of partitions with other leaders to consumers in this broker's rack (KIP-392)."""
