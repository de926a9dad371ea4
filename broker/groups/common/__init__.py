"""Common parts of consumer, share and streams groups: records, deadlines, topics."""
