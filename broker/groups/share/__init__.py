"""Share groups (KIP-932): members read partitions together, like a queue.

`group` assigns partitions to members. `partitions` runs on the partition leader and handles
deliveries, acknowledgments and locks. `state` is the share coordinator, which persists them in
`__share_group_state`.
"""
