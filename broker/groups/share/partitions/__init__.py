"""Share partitions on the partition leader: acquisition locks, acknowledgments, sessions."""
