"""Share partitions on their leader: acquisition locks, acknowledgements, sessions."""
