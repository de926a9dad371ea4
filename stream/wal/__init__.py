"""The write-ahead log on object storage: when to PUT which groups, and which appends are
durable.
"""
