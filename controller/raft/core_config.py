"""Who a core is, and its limits. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """heartbeat_ms: also the time after which a lost append is noticed. election_ms: silence after
    which a voter may look for another leader; each waits up to twice as long, at random. The others
    bound what is on its way to one follower. A leader whose fsync p99 is beyond half a heartbeat
    hands over to a voter with a better disk.
    """

    node_id: int
    heartbeat_ms: int = 100
    election_ms: int = 1_000
    directory: str = ""
    """Which disk this is: a member with another one is somebody else."""

    inflight_count_max: int = 16
    inflight_bytes_max: int = 4 << 20
    append_count_max: int = 256
    append_bytes_max: int = 1 << 20
