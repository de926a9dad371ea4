"""Share groups (KIP-932): members read partitions together, like a queue.

`group` assigns partitions to members. `partitions` runs on the leader of a partition: deliveries,
acknowledgments, locks. `state` persists them in `__share_group_state` (the share coordinator).
"""
