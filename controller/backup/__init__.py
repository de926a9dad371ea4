"""Backup of the committed metadata log in the object store: the format of its objects, the task
that writes them, and the operations that wait for them.
"""
