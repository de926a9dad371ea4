"""The backup of the committed metadata log in the object store: its objects, how it is written, and
what has to wait for it.
"""
