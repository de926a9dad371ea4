"""Parts that the group and the transaction coordinator share: sharded state in an internal topic,
its log and its compaction.
"""
