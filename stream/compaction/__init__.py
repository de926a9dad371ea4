"""Object compaction: rewrite ranges in WAL objects and in many small objects into a few larger
objects.
"""
