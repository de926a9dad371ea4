"""Clean the logs of compacted topics: keep the newest record of each key. Objects are compacted in
`stream.compaction`, which keeps every record.
"""
