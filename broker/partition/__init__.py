"""Partitions on their leader: the log over three streams, producer state, opening and closing."""
