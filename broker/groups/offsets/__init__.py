"""Committed offsets, and their records in `__consumer_offsets`."""
