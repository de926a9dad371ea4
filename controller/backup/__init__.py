"""Back up the committed metadata log to the object store: the objects, how they are written, and
what has to wait for them.
"""
