"""Raft settings of one controller."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """heartbeat_ms: also the time after which a lost append is detected. election_ms: silence after
    which a voter may campaign; each voter waits up to twice as long, at random. The other values
    limit in-flight messages to one follower. A leader whose fsync p99 exceeds half a heartbeat
    transfers leadership to a voter with a faster disk.
    """

    node_id: int
    heartbeat_ms: int = 100
    election_ms: int = 1_000
    directory: str = ""
    """Directory id of this disk; a member with another one is a different controller."""

    inflight_count_max: int = 16
    inflight_bytes_max: int = 4 << 20
    append_count_max: int = 256
    append_bytes_max: int = 1 << 20
