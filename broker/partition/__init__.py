"""Partitions on their leader: the log over three streams, the producer state, opening and
closing.
"""
