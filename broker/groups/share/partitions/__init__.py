"""Share partitions on their leader: acquisition locks, acknowledgments, sessions."""
