"""Consumer groups: the classic protocol as a pure state machine, and the coordinator that keeps it
in `__consumer_offsets`.
"""
