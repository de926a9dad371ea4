"""Settings of one controller process, validated at construction."""

import re
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.base.acls import STANDARD_AUTHORIZER, is_authorizer
from penstock.base.listeners import Listener, parse_listeners
from penstock.base.principal import parse_principals
from penstock.base.settings import Kind, Setting, SettingInvalid
from penstock.base.settings import check as check_settings
from penstock.controller.api.callers import ID, NameRules
from penstock.controller.api.errors import InvalidConfig

QUORUM_SIZES = (1, 3, 5)
CONTROLLER_ID_MAX = (1 << 31) - 1
_ADDRESS = re.compile(r"\S+:\d{1,5}\Z")
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

SESSION_GRACE_MS_MIN = 100
"""Followers send a heartbeat twice per grace period. With a shorter period, most messages would be
heartbeats.
"""


MANIFEST_GRACE_MS_MIN = 120_000
"""Readers request the version after their last known one for up to a minute. A version must not be
written and deleted within that time.
"""


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A controller that is alone, forms a new cluster with two or four others, or joins an existing
    one.
    """

    data_dir: Annotated[Path, Setting("metadata.log.dir", Kind.PATH)]
    """Directory of the journal. The journal is small and must survive restarts; if all controllers
    lose it, use `penstock controller recover`.
    """

    cluster_id: Annotated[str, Setting("cluster.id", Kind.TEXT)] = ""
    """Empty: an id is generated at the first start and stored in `data_dir`. Set it to start with
    an empty `data_dir` in an existing cluster.
    """

    controller_id: Annotated[
        int, Setting("node.id", Kind.INT, 0, CONTROLLER_ID_MAX, templates=True)
    ] = 0
    """Number of this controller in the quorum. {ordinal}: the last number of the host name."""

    peers: Annotated[tuple[str, ...], Setting("controller.quorum.voters", Kind.LIST)] = ()
    """The controllers that form a new cluster, including this one, as id@host:port; empty for a
    single controller. They need the same `cluster_id`.

    Once the cluster exists, the members and their addresses are stored in the quorum itself.
    """

    join: Annotated[tuple[str, ...], Setting("controller.quorum.join.servers", Kind.LIST)] = ()
    """host:port of controllers of an existing cluster: with an empty `data_dir`, this controller
    becomes a learner of their quorum. `penstock quorum add` makes it a voter.
    """

    join_timeout_ms: Annotated[
        int, Setting("controller.quorum.join.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 60_000
    """How long a new controller looks for a quorum to join before startup fails."""

    listeners: Annotated[tuple[str, ...], Setting("listeners", Kind.LISTENERS)] = (
        "CONTROLLER://127.0.0.1:0",
    )
    """The address to bind, as host:port; 0.0.0.0 in containers. Port 0: any free port, for tests.
    An address other than loopback requires TLS between nodes, or `allow.insecure`.
    """

    advertised_listeners: Annotated[
        tuple[str, ...], Setting("advertised.listeners", Kind.LISTENERS, templates=True)
    ] = ()
    """The host:port that brokers and other controllers connect to; empty: the address in the voter
    list or, if there is none, the bound address. {pod} and {ordinal} stand for the host name and
    its last number.
    """

    broker_names: Annotated[tuple[str, ...], Setting("controller.ssl.broker.names", Kind.LIST)] = (
        "penstock-broker",
        "penstock-broker-{id}",
    )
    """Names in the certificates of brokers: the common name, or a DNS name or URI among the subject
    alternative names. {id} stands for a node.id; the broker may then use only this id. Used with
    TLS (`controller.ssl.certificate.location`).
    """

    controller_names: Annotated[
        tuple[str, ...], Setting("controller.ssl.controller.names", Kind.LIST)
    ] = ("penstock-controller", "penstock-controller-{id}")
    """Names in the certificates of controllers, in the same form."""

    admin_names: Annotated[tuple[str, ...], Setting("controller.ssl.admin.names", Kind.LIST)] = (
        "penstock-admin",
    )
    """Names in the certificates of operator commands, such as `penstock topics`."""

    authorizer: Annotated[str, Setting("authorizer.class.name", Kind.TEXT)] = ""
    """Authorizer for requests that brokers forward for their clients: StandardAuthorizer, which
    uses ACLs, as for brokers. Empty: only brokers authorize these requests. Must be the same for
    all brokers and controllers of a cluster.
    """

    super_users: Annotated[str, Setting("super.users", Kind.TEXT)] = ""
    """Principals on whose behalf brokers may request all changes, as User:name, separated by
    semicolons. Use the same as for brokers, or fewer: a stolen broker key grants the rights of
    these principals.
    """

    allow_everyone_if_no_acl_found: Annotated[
        bool, Setting("allow.everyone.if.no.acl.found", Kind.BOOL)
    ] = False
    """Whether everyone may access a resource without ACLs, as for brokers."""

    default_partitions: Annotated[int, Setting("num.partitions", Kind.INT, 1, 10_000)] = 1
    """Number of partitions of topics that are created without a partition count."""

    default_replication_factor: Annotated[
        int, Setting("default.replication.factor", Kind.INT, -1, 100)
    ] = -1
    """Number of leader candidates of topics that are created without a replication factor; -1:
    three, or the number of brokers if there are fewer. Additional candidates only determine the
    next leader.
    """

    raft_heartbeat_ms: Annotated[
        int, Setting("controller.quorum.heartbeat.interval.ms", Kind.DURATION, 1, 60_000)
    ] = 100
    """Interval of the leader's heartbeats to the other controllers."""

    election_timeout_ms: Annotated[
        int, Setting("controller.quorum.election.timeout.ms", Kind.DURATION, 1, 600_000)
    ] = 1_000
    """If the leader is silent for this long, another one is elected after up to twice this time.
    With a lower value, pauses of a busy machine count as failures.
    """

    session_timeout_ms: Annotated[
        int, Setting("broker.session.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 6_000
    """A silent broker is fenced after this time. A lower value detects hung brokers sooner, but may
    fence slow ones.
    """

    session_grace_ms: Annotated[
        int, Setting("broker.session.grace.ms", Kind.DURATION, 1, 3_600_000)
    ] = 300
    """A broker whose stream has broken is fenced after this time unless it opens another stream, so
    this determines how fast a killed process is detected. Brokers send two heartbeats in this time.
    """

    heartbeat_interval_ms: Annotated[
        int, Setting("broker.heartbeat.interval.ms", Kind.DURATION, 1, 600_000)
    ] = 500
    """Interval of broker heartbeats; at most a third of the session timeout."""

    tick_interval_ms: int = 100
    """Interval of the checks for expired sessions. A check also takes place when the next session
    expires.
    """

    move_timeout_ms: Annotated[
        int, Setting("reassignment.move.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 10_000
    """A broker that does not release a partition within this time is fenced, and its WAL is
    recovered. Use more than the duration of the slowest upload.
    """

    lag_limit_ms: int = 1_000
    """A tick that is late by more than this proves that the controller was slow, not the brokers.
    All session timeouts then restart.
    """

    maintenance_interval_ms: int = 1_000
    """Interval of the checks for due recoveries, elections and expirations. When a broker joins or
    leaves, a check takes place immediately.
    """

    queue_count_max: int = 4_096
    """Maximum number of requests that wait for the writer. Additional requests are rejected with
    CONTROLLER_BUSY.
    """

    queue_bytes_max: int = 64 << 20
    batch_count_max: int = 512
    """Maximum number of requests that share one journal write."""

    request_timeout_ms: Annotated[
        int, Setting("request.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 30_000
    """Maximum wait of a request that has no deadline."""

    request_bytes_max: int = 4 << 20
    reply_cache_count_max: int = 4_096
    """Maximum number of replies that are kept for retries after a lost reply."""

    batch_bytes_max: int = 32 << 10
    """Maximum size of the records in one message to a follower, which applies them without yielding
    to its event loop (up to 8 ms; 23 ms for 128 KiB). No more requests are added to a proposal of
    this size.
    """

    transaction_bytes_max: int = 4 << 20
    """Maximum size of the records of one request, which are committed atomically. Larger requests
    are rejected. 10,000 partitions take 1.2 MB.
    """

    followers_count_max: int = 1_000
    """Maximum number of brokers that follow the metadata at the same time; the same limit applies
    to other processes.
    """

    snapshot_records: Annotated[
        int, Setting("metadata.log.max.records.between.snapshots", Kind.INT, 1, 10_000_000)
    ] = 50_000
    """Number of records between two snapshots, which limits the journal, the memory for its tail
    and the startup time (about 1 s per 200,000).
    """

    snapshot_bytes: Annotated[
        int, Setting("metadata.log.max.record.bytes.between.snapshots", Kind.BYTES, 1)
    ] = 64 << 20
    """Size of the records between two snapshots. The limit that is reached first triggers the
    snapshot.
    """

    snapshots_kept: Annotated[
        int, Setting("metadata.snapshots.retained.count", Kind.INT, 2, 1_000)
    ] = 3
    """Number of snapshots kept in the store; at least two, so that a damaged one can be skipped."""

    backup_interval_ms: Annotated[
        int, Setting("metadata.backup.interval.ms", Kind.DURATION, 1, 3_600_000)
    ] = 1_000
    """Committed metadata is copied to the store at most this often (one PUT), and immediately if a
    response depends on it. Metadata that has not been copied yet is lost if the disks of *all*
    controllers are lost, except metadata that acknowledged records depend on. Deletions wait for
    the copy.
    """

    backup_bytes_max: int = 4 << 20
    """Maximum size of the records in one object of the backup."""

    backup_objects: int = 1_000
    """Number of backup objects that trigger a snapshot. This limits the reads of a recovery and of
    a LIST.
    """

    read_grace_ms: Annotated[
        int, Setting("object.delete.grace.ms", Kind.DURATION, 1, 86_400_000)
    ] = 60_000
    """Unreferenced objects are deleted after this time, so that reads in progress can complete."""

    late_put_grace_ms: Annotated[
        int, Setting("object.prepared.grace.ms", Kind.DURATION, 1, 7 * 86_400_000)
    ] = 60 * 60_000
    """Objects that were prepared but never committed are deleted this long after their deadline,
    because the PUT of a paused writer may arrive late.
    """

    fence_kept_ms: Annotated[
        int, Setting("wal.fence.retention.ms", Kind.DURATION, 86_400_000, 3_650 * 86_400_000)
    ] = 7 * 86_400_000
    """How long the fence of an ended broker incarnation stays in the store, according to the clocks
    of the store and this controller. Must be much longer than a session and the clock errors.
    """

    delete_grace_ms: Annotated[
        int, Setting("delete.grace.ms", Kind.DURATION, 0, 366 * 86_400_000)
    ] = 3_600_000
    """How long deleted topics, and records deleted by DeleteRecords, can be restored (`penstock
    topics undelete`). Their objects are kept for that time; 0: they are removed immediately. The
    topic config `penstock.delete.grace.ms` overrides it.
    """

    deleted_partitions_max: Annotated[
        int, Setting("deleted.partitions.max", Kind.INT, 0, 1_000_000)
    ] = 10_000
    """Maximum number of partitions of all deleted topics; above it, the oldest deleted topics are
    removed immediately.
    """

    partitions_max: Annotated[int, Setting("max.partitions", Kind.INT, 1, 10_000_000)] = 200_000
    """Maximum number of partitions of all topics and snapshots (KIP-578); above it, CreateTopics,
    CreatePartitions and automatic creation fail with POLICY_VIOLATION. Internal topics count, but
    are always created.
    """

    quota_window_num: Annotated[int, Setting("controller.quota.window.num", Kind.INT, 1, 1_000)] = (
        11
    )
    """Number of samples of the partition mutation quota: after being idle, a client may use the
    quota of all samples at once.
    """

    quota_window_size_seconds: Annotated[
        int, Setting("controller.quota.window.size.seconds", Kind.INT, 1, 3_600)
    ] = 1
    """Length of one sample of that quota, in seconds."""

    auto_balance: Annotated[bool, Setting("auto.balance.enable", Kind.BOOL)] = False
    """Move partitions automatically so that brokers have equal loads, and relieve brokers that are
    much slower than the others.
    """

    balance_interval_ms: Annotated[
        int, Setting("auto.balance.interval.ms", Kind.DURATION, 1, 3_600_000)
    ] = 5_000
    """Interval of automatic balancing; a new broker gets its first partitions after about two of
    these.
    """

    balance_cooldown_ms: Annotated[
        int, Setting("auto.balance.cooldown.ms", Kind.DURATION, 1, 86_400_000)
    ] = 60_000
    """A partition that has moved is not moved again by automatic balancing for this long."""

    balance_return_delay_ms: Annotated[
        int, Setting("auto.balance.return.delay.ms", Kind.DURATION, 0, 86_400_000)
    ] = 30_000
    """Automatic balancing moves no partitions to a restarted broker for this long, because clients
    may still have its old address. New brokers do not wait.
    """

    balance_bytes_min: Annotated[
        int, Setting("auto.balance.min.bytes.per.second", Kind.BYTES, 1)
    ] = 256 << 10
    """Total bytes per second of all brokers above which bytes are balanced; idle clusters are not
    balanced by bytes.
    """

    janitor_interval_ms: Annotated[
        int, Setting("object.delete.interval.ms", Kind.DURATION, 1, 3_600_000)
    ] = 5_000
    """Interval between searches for unreferenced objects."""

    manifest_interval_ms: Annotated[
        int, Setting("manifest.interval.ms", Kind.DURATION, 0, 3_600_000)
    ] = 1_000
    """Minimum interval between two versions of the public manifest, which is published after
    changes. Each version costs one PUT, at most 13 USD per month on S3. 0: the manifest is not
    published.
    """

    manifest_grace_ms: Annotated[
        int, Setting("manifest.grace.ms", Kind.DURATION, MANIFEST_GRACE_MS_MIN, 86_400_000)
    ] = 10 * 60_000
    """How long old versions of the manifest are kept for readers that have not seen a newer one.
    This amounts to a few hundred small objects.
    """

    stop_timeout_ms: Annotated[int, Setting("shutdown.timeout.ms", Kind.DURATION, 1, 3_600_000)] = (
        5_000
    )
    """Maximum duration of a graceful stop."""

    def __post_init__(self) -> None:
        try:
            check_settings(self)
        except SettingInvalid as error:
            raise InvalidConfig(error.name, error.value, error.allowed) from None
        if self.cluster_id and not _CLUSTER_ID.match(self.cluster_id):
            raise InvalidConfig(
                "cluster_id", self.cluster_id, "1 to 64 letters, digits, '-' and '_'"
            )
        if self.default_replication_factor == 0:
            raise InvalidConfig(
                "default_replication_factor", self.default_replication_factor, "1 to 100, or -1"
            )
        self._check_addresses()
        self._check_peers()
        self._check_join()
        self._check_names()
        self._check_authorizer()
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise InvalidConfig(name, getattr(self, name), "more than 0")
        if not SESSION_GRACE_MS_MIN <= self.session_grace_ms <= self.session_timeout_ms:
            allowed = (
                f"from {SESSION_GRACE_MS_MIN} ms to session_timeout_ms"
                f" ({self.session_timeout_ms} ms)"
            )
            raise InvalidConfig("session_grace_ms", self.session_grace_ms, allowed)
        if self.session_timeout_ms < 3 * self.heartbeat_interval_ms:
            allowed = f"at least three heartbeats ({3 * self.heartbeat_interval_ms} ms)"
            raise InvalidConfig("session_timeout_ms", self.session_timeout_ms, allowed)

    @property
    def voters(self) -> dict[int, str]:
        """Addresses of the controllers by id. Empty for a single controller."""
        found: dict[int, str] = {}
        for peer in self.peers:
            number, _, address = peer.partition("@")
            if not number.isdecimal() or not _ADDRESS.match(address) or int(number) in found:
                raise InvalidConfig(
                    "peers",
                    peer,
                    "id@host:port, each id once, as in"
                    " 0@10.0.0.1:9093,1@10.0.0.2:9093,2@10.0.0.3:9093",
                )
            found[int(number)] = address
        return found

    @property
    def mutation_window_ms(self) -> int:
        """The window of the partition mutation quota."""
        return self.quota_window_num * self.quota_window_size_seconds * 1_000

    @property
    def name_rules(self) -> NameRules:
        """The certificate name rules of each caller role."""
        return NameRules(self.broker_names, self.controller_names, self.admin_names)

    @property
    def super_user_names(self) -> frozenset[str]:
        """The super users as `User:name`. Raises ValueError."""
        return parse_principals(self.super_users)

    @property
    def host(self) -> str:
        """Host to bind to."""
        return self._listener.host

    @property
    def port(self) -> int:
        """Port to bind to; 0 for any free port, which `ControllerServer.port` returns."""
        return self._listener.port

    @property
    def advertised(self) -> str:
        """Advertised host:port, or "" if none is configured."""
        advertised = parse_listeners("advertised_listeners", self.advertised_listeners)
        return advertised[0].address if advertised else ""

    @property
    def _listener(self) -> Listener:
        return parse_listeners("listeners", self.listeners)[0]

    def _check_addresses(self) -> None:
        for name, least in (("listeners", 1), ("advertised_listeners", 0)):
            given: tuple[str, ...] = getattr(self, name)
            try:
                count = len(parse_listeners(name, given))
            except SettingInvalid as error:
                raise InvalidConfig(error.name, error.value, error.allowed) from None
            if not least <= count <= 1:
                raise InvalidConfig(
                    name, ",".join(given), "one host:port: a controller has one listener"
                )

    def _check_names(self) -> None:
        for field in ("broker_names", "controller_names", "admin_names"):
            for name in getattr(self, field):
                if name.count(ID) > 1 or not name.replace(ID, "", 1).strip():
                    raise InvalidConfig(field, name, f"a name with at most one {ID}, and more")

    def _check_authorizer(self) -> None:
        if not is_authorizer(self.authorizer):
            raise InvalidConfig("authorizer", self.authorizer, f"{STANDARD_AUTHORIZER}, or empty")
        try:
            _ = self.super_user_names
        except ValueError:
            allowed = "User:name, separated by semicolons"
            raise InvalidConfig("super_users", self.super_users, allowed) from None

    def _check_peers(self) -> None:
        voters = self.voters
        if len(voters) not in {0, *QUORUM_SIZES}:
            raise InvalidConfig(
                "peers",
                ",".join(self.peers),
                f"{', '.join(map(str, QUORUM_SIZES))} of them: an even number adds no safety",
            )
        if not 0 <= self.controller_id <= CONTROLLER_ID_MAX:
            raise InvalidConfig("controller_id", self.controller_id, f"0 to {CONTROLLER_ID_MAX}")
        if voters and self.controller_id not in voters:
            raise InvalidConfig(
                "controller_id",
                self.controller_id,
                f"one of the ids in peers: {', '.join(map(str, voters))}",
            )
        if len(voters) > 1 and not self.cluster_id:
            raise InvalidConfig(
                "cluster_id",
                "",
                "the same for all controllers of the quorum; choose 1 to 64 letters, digits, '-'"
                " and '_'",
            )
        if self.election_timeout_ms < 3 * self.raft_heartbeat_ms:
            allowed = f"at least three heartbeats of the quorum ({3 * self.raft_heartbeat_ms} ms)"
            raise InvalidConfig("election_timeout_ms", self.election_timeout_ms, allowed)

    def _check_join(self) -> None:
        if self.join and self.peers:
            raise InvalidConfig(
                "join",
                ",".join(self.join),
                "either join, for an existing quorum, or peers, for a new one",
            )
        for address in self.join:
            if not _ADDRESS.match(address):
                raise InvalidConfig(
                    "join", address, "host:port of a controller, several separated by commas"
                )


_POSITIVE = (
    "tick_interval_ms",
    "lag_limit_ms",
    "maintenance_interval_ms",
    "queue_count_max",
    "queue_bytes_max",
    "batch_count_max",
    "request_bytes_max",
    "reply_cache_count_max",
    "batch_bytes_max",
    "transaction_bytes_max",
    "followers_count_max",
    "backup_bytes_max",
    "backup_objects",
)
"""Limits that are not settings. The annotations of the settings contain theirs."""
