"""Raft settings of one controller."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Raft settings. heartbeat_ms: heartbeat interval, after which lost appends are detected.
    election_ms: how long the leader must be silent before a voter may campaign; each voter waits
    for a random time between one and two times this value. The other values limit the in-flight
    messages to one follower. A leader whose fsync p99 exceeds half a heartbeat transfers leadership
    to a voter with a faster disk.
    """

    node_id: int
    heartbeat_ms: int = 100
    election_ms: int = 1_000
    directory: str = ""
    """Directory id of this disk. A member with a different directory id is a different
    controller.
    """

    inflight_count_max: int = 16
    inflight_bytes_max: int = 4 << 20
    append_count_max: int = 256
    append_bytes_max: int = 1 << 20
