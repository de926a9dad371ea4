"""A partition on its leader: the log over three streams, the producer state, and opening and
closing.
"""
