"""Common parts of the group, transaction and share coordinators: sharded state in an internal
topic, its log and its compaction.
"""
