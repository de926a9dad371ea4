"""Share groups (KIP-932): the broker assigns partitions to members, which may share them."""
