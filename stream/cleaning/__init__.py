"""Log compaction: keep the newest record of each key. `stream.compaction` rewrites objects without
removing records.
"""
