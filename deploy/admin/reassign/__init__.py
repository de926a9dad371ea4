"""Manual partition moves: the files and terms of `kafka-reassign-partitions`, and the steps of a
move.
"""
