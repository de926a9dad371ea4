"""Consumer groups (KIP-848): the broker assigns partitions, and members reconcile individually,
without a barrier for the whole group.
"""
