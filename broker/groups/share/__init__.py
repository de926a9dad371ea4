"""Share groups (KIP-932): members read partitions together, as from a queue.

`group` assigns partitions to members. `partitions` runs on the leader of a partition: deliveries,
acknowledgements, locks. `state` persists them in `__share_group_state` (the share coordinator).
"""
