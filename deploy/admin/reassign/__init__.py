"""Moving partitions by hand: the files and the words of `kafka-reassign-partitions`, and what a
move was made of.
"""
