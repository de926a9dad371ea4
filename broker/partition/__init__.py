"""A partition on its leader: the log over three streams, what is remembered of producers, and who
opens and closes it.
"""
