"""Object compaction: rewrite ranges of WAL objects and of many small objects into a few larger
ones.
"""
