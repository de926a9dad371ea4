"""Settings of one controller process: every limit has a unit, a default and a note of what it costs.

Invariant: a config that was built is valid; wrong values are refused at start, by name, with what is allowed.
"""

import re
from pathlib import Path

import msgspec

from controller.errors import InvalidConfig

QUORUM_SIZES = (1, 3, 5)
CONTROLLER_ID_MAX = (1 << 31) - 1
_ADDRESS = re.compile(r"\S+:\d{1,5}\Z")
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

SESSION_GRACE_MS_MIN = 100
"""Followers send a heartbeat every half grace; less would be mostly heartbeats."""


MANIFEST_GRACE_MS_MIN = 120_000
"""Readers ask for the version behind the one they know for a minute: it must not have come and gone meanwhile."""


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A controller: alone, one of three or five that begin a cluster, or one that joins."""

    data_dir: Path
    """The journal lives here. Small, must survive restarts; when all controllers lose theirs, `penstock controller recover` helps."""

    cluster_id: str = ""
    """Empty: generated at the first start and kept in `data_dir`. Set it to begin with an empty `data_dir` in a cluster that exists."""

    controller_id: int = 0
    peers: tuple[str, ...] = ()
    """The controllers with which a new cluster begins, this one too, as id@host:port; empty: it is alone. They need one `cluster_id`.

    From then on the quorum itself knows who is in it, and where."""

    join: tuple[str, ...] = ()
    """host:port of controllers of a cluster that exists: with an empty `data_dir` this one becomes a learner of their quorum. It votes
    when `penstock controller add` says so."""

    join_timeout_ms: int = 60_000
    """Nobody there to join for this long: the start fails."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port; `ControllerServer.port` tells which."""

    advertised: str = ""
    """host:port that clients are told; empty: `host` and the bound port."""

    default_partitions: int = 1
    """Partitions of a topic whose creator names no number."""

    default_replication_factor: int = -1
    """Leader candidates likewise; -1: three, or as many as there are brokers. More of them only say who leads next."""

    raft_heartbeat_ms: int = 100
    """How often the leader tells the other controllers that it lives."""

    election_timeout_ms: int = 1_000
    """Silence of the leader after which another is elected, in one to two times this. Lower takes pauses of a busy machine for deaths."""

    session_timeout_ms: int = 6_000
    """A silent broker is fenced after this. Lower finds hung brokers sooner and fences slow ones by mistake."""

    session_grace_ms: int = 500
    """A broker whose stream broke, and who did not open another, is fenced after this: so soon is a killed process found."""

    heartbeat_interval_ms: int = 500
    tick_interval_ms: int = 100
    """How often sessions are looked at; adds to the time until a dead broker is fenced."""

    move_timeout_ms: int = 10_000
    """A broker that does not give up a partition within this is fenced, and its WAL recovered. Longer than its slowest upload."""

    lag_limit_ms: int = 1_000
    """A tick that comes this much late proves that we, not the brokers, were slow: every session starts afresh."""

    maintenance_interval_ms: int = 1_000
    """How often due recoveries, elections and expiry are looked for; changes of nodes trigger them at once."""

    queue_count_max: int = 4_096
    """Requests that wait for the writer; more are refused with CONTROLLER_BUSY."""

    queue_bytes_max: int = 64 << 20
    batch_count_max: int = 512
    """Requests that share one journal write."""

    request_timeout_ms: int = 30_000
    """Longest wait of a request whose caller named no deadline."""

    request_bytes_max: int = 4 << 20
    reply_cache_count_max: int = 4_096
    """Answers kept for repetition after a lost reply."""

    batch_bytes_max: int = 128 << 10
    """Records in one message to a follower, which applies them in one turn of its event loop (10 to 20 ms). A proposal with so many takes
    no further request.
    """

    transaction_bytes_max: int = 4 << 20
    """Records of one request, which are committed together or not at all; what would make more is refused. 10,000 partitions are 1.2 MB."""

    followers_count_max: int = 1_000
    snapshot_records: int = 50_000
    """Records between two snapshots; bounds the journal, the memory of its tail and the time of a start (about 1 s per 200,000)."""

    snapshot_bytes: int = 64 << 20
    snapshots_kept: int = 3
    backup_interval_ms: int = 1_000
    """Committed metadata are copied to the store at most this often (one PUT), and at once for what has to be there before an answer. What
    is not copied yet is lost with *all* controllers' disks, except what acknowledged records need. Deletions wait for it."""

    backup_bytes_max: int = 4 << 20
    """Records in one object of the backup."""

    backup_objects: int = 1_000
    """Objects of the backup after which a snapshot is due: bounds the reads of a recovery and of a LIST."""

    read_grace_ms: int = 60_000
    """Bytes of an object that nothing refers to are deleted after this, so that reads under way can end."""

    auto_balance: bool = False
    """Move partitions by itself so that brokers carry equal loads, and relieve brokers that answer much slower than their peers."""

    balance_interval_ms: int = 5_000
    """How often auto-balancing looks; a new broker has its first partitions after about two of these."""

    balance_cooldown_ms: int = 60_000
    """A partition that moved is not moved again by auto-balancing for so long."""

    balance_bytes_min: int = 256 << 10
    """Bytes in a second that all brokers together must have before bytes are balanced: idle clusters are left alone."""

    janitor_interval_ms: int = 5_000

    manifest_interval_ms: int = 1_000
    """The public manifest is published at most this often, when something changed: one PUT each, 13 USD a month on S3. 0: never."""

    manifest_grace_ms: int = 10 * 60_000
    """Old versions of the manifest stay this long for readers that have not seen a newer one. A few hundred small objects."""

    stop_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.cluster_id and not _CLUSTER_ID.match(self.cluster_id):
            raise InvalidConfig("cluster_id", self.cluster_id, "1 to 64 letters, digits, '-' and '_'")
        if not 0 <= self.port <= 65_535:
            raise InvalidConfig("port", self.port, "0 to 65535")
        if self.default_replication_factor != -1 and not 1 <= self.default_replication_factor <= 100:
            raise InvalidConfig("default_replication_factor", self.default_replication_factor, "1 to 100, or -1")
        if self.snapshots_kept < 2:
            raise InvalidConfig("snapshots_kept", self.snapshots_kept, "at least 2, so that a damaged one can be passed over")
        self._check_peers()
        self._check_join()
        self._check_manifest()
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise InvalidConfig(name, getattr(self, name), "more than 0")
        if not SESSION_GRACE_MS_MIN <= self.session_grace_ms <= self.session_timeout_ms:
            allowed = f"from {SESSION_GRACE_MS_MIN} ms to session_timeout_ms ({self.session_timeout_ms} ms)"
            raise InvalidConfig("session_grace_ms", self.session_grace_ms, allowed)
        if self.session_timeout_ms < 3 * self.heartbeat_interval_ms:
            allowed = f"at least three heartbeats ({3 * self.heartbeat_interval_ms} ms)"
            raise InvalidConfig("session_timeout_ms", self.session_timeout_ms, allowed)

    @property
    def voters(self) -> dict[int, str]:
        """Address of each controller by its id; empty for one that is alone."""
        found: dict[int, str] = {}
        for peer in self.peers:
            number, _, address = peer.partition("@")
            if not number.isdecimal() or not _ADDRESS.match(address) or int(number) in found:
                raise InvalidConfig("peers", peer, "id@host:port, each id once, as in 0@10.0.0.1:9093,1@10.0.0.2:9093,2@10.0.0.3:9093")
            found[int(number)] = address
        return found

    def _check_manifest(self) -> None:
        if self.manifest_interval_ms < 0:
            raise InvalidConfig("manifest_interval_ms", self.manifest_interval_ms, "0 (never), or more")
        if self.manifest_grace_ms < MANIFEST_GRACE_MS_MIN:
            raise InvalidConfig("manifest_grace_ms", self.manifest_grace_ms, f"at least {MANIFEST_GRACE_MS_MIN}")

    def _check_peers(self) -> None:
        voters = self.voters
        if len(voters) not in {0, *QUORUM_SIZES}:
            raise InvalidConfig("peers", ",".join(self.peers), f"{', '.join(map(str, QUORUM_SIZES))} of them: an even one adds no safety")
        if not 0 <= self.controller_id <= CONTROLLER_ID_MAX:
            raise InvalidConfig("controller_id", self.controller_id, f"0 to {CONTROLLER_ID_MAX}")
        if voters and self.controller_id not in voters:
            raise InvalidConfig("controller_id", self.controller_id, f"one of the ids in peers: {', '.join(map(str, voters))}")
        if len(voters) > 1 and not self.cluster_id:
            raise InvalidConfig("cluster_id", "", "the same for all controllers of the quorum; choose 1 to 64 letters, digits, '-' and '_'")
        if self.election_timeout_ms < 3 * self.raft_heartbeat_ms:
            allowed = f"at least three heartbeats of the quorum ({3 * self.raft_heartbeat_ms} ms)"
            raise InvalidConfig("election_timeout_ms", self.election_timeout_ms, allowed)

    def _check_join(self) -> None:
        if self.join and self.peers:
            raise InvalidConfig("join", ",".join(self.join), "either join, for a quorum that exists, or peers, for one that begins")
        for address in self.join:
            if not _ADDRESS.match(address):
                raise InvalidConfig("join", address, "host:port of a controller, several by commas")


_POSITIVE = (
    "default_partitions", "raft_heartbeat_ms", "election_timeout_ms",
    "session_timeout_ms", "session_grace_ms", "move_timeout_ms", "heartbeat_interval_ms", "tick_interval_ms", "lag_limit_ms",
    "maintenance_interval_ms",
    "queue_count_max", "queue_bytes_max", "batch_count_max", "request_timeout_ms", "request_bytes_max", "reply_cache_count_max",
    "batch_bytes_max", "transaction_bytes_max",
    "followers_count_max", "snapshot_records", "snapshot_bytes", "backup_interval_ms", "backup_bytes_max", "backup_objects",
    "read_grace_ms", "balance_interval_ms", "balance_cooldown_ms", "balance_bytes_min", "janitor_interval_ms",
    "stop_timeout_ms", "join_timeout_ms",
)  # fmt: skip
