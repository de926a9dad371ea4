"""The write-ahead log on object storage: which groups to PUT and when, and which appends are
durable.
"""
