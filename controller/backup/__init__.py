"""Backup of the committed metadata log in the object store: the objects, how they are written, and
what has to wait for them.
"""
