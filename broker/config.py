"""Settings of one broker process, under Kafka's names where Kafka has an equivalent. Validated at
construction.
"""

from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from penstock.base.listeners import (
    Listener,
    check_known,
    expand,
    own_values,
    parse_listeners,
    uses,
)
from penstock.base.settings import (
    HIDDEN,
    Kind,
    Setting,
    SettingInvalid,
    check,
)
from penstock.broker.quotas.connections import ListenerLimits, parse_overrides

CHECK_OFF: Final = "off"
CHECK_WARN: Final = "warn"
CHECK_STRICT: Final = "strict"
LEADER_ALONE: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The values of `replica.selector.class`, as in Kafka."""
CONSUMER_ASSIGNORS: Final = ("uniform", "range")
_INT32_MAX: Final = (1 << 31) - 1
_TIB: Final = 1 << 40
_ORDERED: Final = (
    ("group_min_session_timeout_ms", "group_max_session_timeout_ms", True),
    ("group_consumer_heartbeat_interval_ms", "group_consumer_session_timeout_ms", False),
    ("group_consumer_min_session_timeout_ms", "group_consumer_max_session_timeout_ms", True),
    ("group_consumer_min_heartbeat_interval_ms", "group_consumer_max_heartbeat_interval_ms", True),
    ("group_share_heartbeat_interval_ms", "group_share_session_timeout_ms", False),
    ("group_share_min_session_timeout_ms", "group_share_max_session_timeout_ms", True),
    ("group_share_min_heartbeat_interval_ms", "group_share_max_heartbeat_interval_ms", True),
    ("group_share_min_record_lock_duration_ms", "group_share_max_record_lock_duration_ms", True),
    ("group_streams_heartbeat_interval_ms", "group_streams_session_timeout_ms", False),
    ("group_streams_min_session_timeout_ms", "group_streams_max_session_timeout_ms", True),
    ("group_streams_min_heartbeat_interval_ms", "group_streams_max_heartbeat_interval_ms", True),
    ("group_streams_num_standby_replicas", "group_streams_max_standby_replicas", True),
)
"""Pairs of settings: the first must not exceed the second, and the flag states whether they may be
equal.
"""


_MAX_CONNECTIONS: Final = "max.connections"
_CREATION_RATE: Final = "max.connection.creation.rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of a broker. Sizes are in bytes, times in milliseconds."""

    node_id: Annotated[int, Setting("node.id", Kind.INT, -1, _INT32_MAX, templates=True)] = -1
    """Id of this broker in its cluster. -1: the controller assigns the lowest free id."""

    listeners: Annotated[tuple[str, ...], Setting("listeners", Kind.LISTENERS)] = (
        "PLAINTEXT://127.0.0.1:9092",
    )
    """Addresses to bind, as NAME://host:port. Use 0.0.0.0 in containers and port 0 for any free
    port. On addresses other than loopback, clients must authenticate, unless `allow.insecure` is
    set. A client of one listener receives the other brokers' addresses for the listener with the
    same name, or for their first listener if they have none with that name. Brokers connect to each
    other's first listener.
    """

    advertised_listeners: Annotated[
        tuple[str, ...], Setting("advertised.listeners", Kind.LISTENERS, templates=True)
    ] = ()
    """Addresses returned to clients of each listener, as NAME://host:port. Empty: the address at
    which each client reached this broker.

    {host}, {port}, {id}, {pod} and {ordinal} stand for this machine's address, the bound port,
    node.id, the host name and its last number; {ordinal+31000} adds.
    """

    advertised_check: Annotated[
        str, Setting("advertised.check", Kind.ENUM, choices=(CHECK_OFF, CHECK_WARN, CHECK_STRICT))
    ] = CHECK_WARN
    """Whether a broker checks at startup that it can reach its own advertised addresses. warn logs
    a problem; strict stops the process (exit code 1).
    """

    rack: Annotated[str | None, Setting("broker.rack", Kind.TEXT)] = None
    """Location of this broker, such as an availability zone. Clients receive it."""

    replica_selector: Annotated[
        str, Setting("replica.selector.class", Kind.ENUM, choices=(LEADER_ALONE, RACK_AWARE))
    ] = RACK_AWARE
    """How consumers with `client.rack` are served (KIP-392). With the rack-aware selector, the
    leader redirects them to a broker in their rack, which reads the records from the store.
    """

    controllers: Annotated[
        tuple[str, ...], Setting("controller.quorum.bootstrap.servers", Kind.LIST)
    ] = ("127.0.0.1:9093",)
    """host:port of controllers. One reachable controller is enough."""

    registration_timeout_ms: Annotated[
        int, Setting("registration.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 60_000
    """How long a broker looks for a controller at startup before it exits (exit code 1)."""

    shutdown_timeout_ms: Annotated[
        int, Setting("shutdown.timeout.ms", Kind.DURATION, 1, 3_600_000)
    ] = 25_000
    """Maximum duration of a graceful stop, below Kubernetes' default grace period of 30 s. Then the
    process exits, and other brokers recover its WAL.
    """

    shutdown_redirect_ms: Annotated[
        int, Setting("shutdown.redirect.ms", Kind.DURATION, 0, 600_000)
    ] = 0
    """How long a stopping broker that has moved its partitions away keeps redirecting clients to
    the new leaders. A client that only sees its connection close reconnects to this address. If the
    address disappears with the broker, like that of a pod, the attempt blocks the client for 30 s
    (librdkafka). Added to `shutdown.timeout.ms`.
    """

    request_bytes_max: Annotated[
        int, Setting("socket.request.max.bytes", Kind.BYTES, 1_024, _INT32_MAX)
    ] = 100 * 1024 * 1024
    """Largest request. A larger frame closes the connection."""

    connections_max: Annotated[
        int,
        Setting(_MAX_CONNECTIONS, Kind.INT, 1, 1_000_000, is_dynamic=True, per_listener=True),
    ] = 10_000
    """Maximum number of connections. Additional connections wait until others close; up to 1,024
    per listener may wait. Unauthenticated connections are closed in favor of addresses with fewer
    of them. An idle connection takes about 10 KB. Brokers connect to each other beyond the limit if
    clients have another listener.
    """

    connections_per_ip_max: Annotated[
        int, Setting("max.connections.per.ip", Kind.INT, 0, _INT32_MAX, is_dynamic=True)
    ] = _INT32_MAX
    """Maximum number of connections from one address. The broker closes additional ones
    immediately.
    """

    connections_per_ip_overrides: Annotated[
        tuple[str, ...], Setting("max.connections.per.ip.overrides", Kind.LIST, is_dynamic=True)
    ] = ()
    """Connection limits of individual addresses, as ADDRESS:COUNT."""

    connection_creation_rate_max: Annotated[
        int,
        Setting(_CREATION_RATE, Kind.INT, 0, _INT32_MAX, is_dynamic=True, per_listener=True),
    ] = _INT32_MAX
    """Maximum number of new connections per second, averaged over `quota.window.num` samples. Above
    this rate, connections wait.
    """

    connections_idle_ms: Annotated[
        int, Setting("connections.max.idle.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True)
    ] = 600_000
    """The broker closes a connection that completes no request for this long. This also limits slow
    senders.
    """

    request_stall_ms: Annotated[
        int, Setting("request.stall.timeout.ms", Kind.DURATION, 1, 3_600_000, is_dynamic=True)
    ] = 30_000
    """The broker closes a connection whose partial request receives no byte for this long."""

    requests_in_flight_max: Annotated[
        int, Setting("connection.max.requests.in.flight", Kind.INT, 1, 100_000, is_dynamic=True)
    ] = 256
    """Maximum number of outstanding requests per connection. The broker stops reading at the limit,
    because clients pipeline without a limit of their own.
    """

    response_bytes_max: Annotated[
        int, Setting("connection.max.response.bytes", Kind.BYTES, 1, _TIB, is_dynamic=True)
    ] = 4 * 1024 * 1024
    """Maximum size of the completed but unsent responses of one connection. Above this limit, the
    broker starts no more requests from the connection, which blocks a client that does not read its
    responses. A single response may be larger (`fetch.max.bytes`).
    """

    buffered_request_bytes_max: Annotated[
        int, Setting("queued.max.request.bytes", Kind.BYTES, 1_024, _TIB, is_dynamic=True)
    ] = 512 * 1024 * 1024
    """Memory for the requests of all connections, including partially received ones. Above this
    limit, the broker stops reading from all connections. At least `socket.request.max.bytes`.
    """

    buffered_principal_percent: Annotated[
        int,
        Setting("queued.max.request.principal.percent", Kind.INT, 1, 100, is_dynamic=True),
    ] = 50
    """Share of `queued.max.request.bytes` that one principal may use, in percent. Above this share,
    the broker stops reading from the connections of the principal; above twice this share, it
    closes those that have sent part of a request. Unauthenticated clients are subject only to the
    overall limit.
    """

    quota_window_num: Annotated[int, Setting("quota.window.num", Kind.INT, 1, 1_000)] = 11
    """Samples over which the rate of a client is measured for its quotas, including the current
    one. More samples allow larger bursts after a pause.
    """

    quota_window_size_seconds: Annotated[
        int, Setting("quota.window.size.seconds", Kind.INT, 1, 3_600)
    ] = 1
    """Seconds per sample. A client waits at most this long for a request time quota."""

    fetch_bytes_max: Annotated[
        int, Setting("fetch.max.bytes", Kind.BYTES, 1_024, _INT32_MAX, is_dynamic=True)
    ] = 55 * 1024 * 1024
    """Maximum size of the records in one Fetch response, regardless of the request. A single batch
    that is larger is still returned.
    """

    fetch_session_slots_max: Annotated[
        int, Setting("max.incremental.fetch.session.cache.slots", Kind.INT, 0, 100_000)
    ] = 1_000
    """Maximum number of fetch sessions (KIP-227) on the broker; 0 disables them. Consumers without
    a session send all their partitions in each request.
    """

    auto_create_topics_enable: Annotated[
        bool, Setting("auto.create.topics.enable", Kind.BOOL, is_dynamic=True)
    ] = True
    """Create topics that do not exist when clients request them."""

    num_partitions: Annotated[
        int, Setting("num.partitions", Kind.INT, -1, 10_000, is_dynamic=True)
    ] = 1
    """Number of partitions of topics that are created without a partition count. -1: the controller
    decides.
    """

    default_replication_factor: Annotated[
        int, Setting("default.replication.factor", Kind.INT, -1, 100, is_dynamic=True)
    ] = -1
    """Number of leader candidates of topics that are created without a replication factor. -1: the
    controller decides.
    """

    offsets_topic_num_partitions: Annotated[
        int, Setting("offsets.topic.num.partitions", Kind.INT, 1, 10_000)
    ] = 50
    """Number of partitions of `__consumer_offsets`. Cannot be changed once the topic exists."""

    transaction_state_log_num_partitions: Annotated[
        int, Setting("transaction.state.log.num.partitions", Kind.INT, 1, 10_000)
    ] = 50
    """Number of partitions of `__transaction_state`. Cannot be changed once the topic exists."""

    transaction_max_timeout_ms: Annotated[
        int, Setting("transaction.max.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True)
    ] = 900_000
    """Longest timeout that a transaction may request. An open transaction can delay read_committed
    consumers for that long.
    """

    transaction_abort_timed_out_transaction_cleanup_interval_ms: Annotated[
        int,
        Setting(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            Kind.DURATION,
            10,
            3_600_000,
            is_dynamic=True,
        ),
    ] = 10_000
    """Interval of the check for timed-out transactions, and thus the maximum delay of an abort."""

    transaction_partition_verification_enable: Annotated[
        bool, Setting("transaction.partition.verification.enable", Kind.BOOL)
    ] = True
    """Whether leaders verify transactions with their coordinator before the first batch, also for
    clients that add their partitions themselves (versions before KIP-890).
    """

    producer_id_expiration_ms: Annotated[
        int, Setting("producer.id.expiration.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True)
    ] = 86_400_000
    """A partition drops the state of an idempotent producer that has written nothing for this long,
    at its next checkpoint. It then no longer detects duplicate batches of this producer. It tracks
    at most 100,000 producers (35 MiB), regardless of this setting.
    """

    log_cleaner_enable: Annotated[bool, Setting("log.cleaner.enable", Kind.BOOL)] = True
    """Whether the broker compacts the logs of topics with `cleanup.policy=compact`."""

    log_cleaner_backoff_ms: Annotated[
        int, Setting("log.cleaner.backoff.ms", Kind.DURATION, 100, 86_400_000, is_dynamic=True)
    ] = 15_000
    """How often the broker checks which logs are due for compaction."""

    log_cleaner_dedupe_buffer_bytes: Annotated[
        int, Setting("log.cleaner.dedupe.buffer.size", Kind.BYTES, 1_048_576, _TIB, is_dynamic=True)
    ] = 128 * 1024 * 1024
    """Memory for the keys of one pass, 228 bytes each. A log with more keys takes several
    passes.
    """

    log_cleaner_bytes_per_s_max: Annotated[
        int, Setting("log.cleaner.io.max.bytes.per.second", Kind.BYTES, 0, _TIB, is_dynamic=True)
    ] = 32 * 1024 * 1024
    """Maximum number of bytes that log compaction reads and writes per second; 0 for no limit. A
    higher value leaves less CPU for clients.
    """

    log_retention_check_interval_ms: Annotated[
        int,
        Setting("log.retention.check.interval.ms", Kind.DURATION, 100, 86_400_000, is_dynamic=True),
    ] = 300_000
    """How often the broker checks for records beyond the retention of their topic."""

    offsets_retention_minutes: Annotated[
        int, Setting("offsets.retention.minutes", Kind.INT, 1, _INT32_MAX, is_dynamic=True)
    ] = 7 * 24 * 60
    """How long offsets are kept after their commit or after the last member left the group,
    whichever is later.
    """

    group_initial_rebalance_delay_ms: Annotated[
        int, Setting("group.initial.rebalance.delay.ms", Kind.DURATION, 0, 600_000, is_dynamic=True)
    ] = 3_000
    """How long the first member of an empty group waits for more members. Use 0 in development and
    tests.
    """

    group_min_session_timeout_ms: Annotated[
        int, Setting("group.min.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True)
    ] = 6_000
    """Shortest session timeout that a group member may request."""

    group_max_session_timeout_ms: Annotated[
        int, Setting("group.max.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True)
    ] = 1_800_000
    """Longest session timeout that a group member may request."""

    group_max_size: Annotated[
        int, Setting("group.max.size", Kind.INT, 1, 100_000, is_dynamic=True)
    ] = 1_000
    """Maximum number of members of one group. Additional members are rejected."""

    group_consumer_session_timeout_ms: Annotated[
        int,
        Setting("group.consumer.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True),
    ] = 45_000
    """How long a member of a consumer group (`group.protocol=consumer`) may be silent before its
    partitions are reassigned.
    """

    group_consumer_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.consumer.heartbeat.interval.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 5_000
    """How often members of consumer groups send heartbeats, and thus how fast they receive a new
    assignment. Below `group.consumer.session.timeout.ms`.
    """

    group_consumer_min_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.consumer.min.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 45_000
    """Shortest session timeout that the configs of a consumer group may set."""

    group_consumer_max_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.consumer.max.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 60_000
    """Longest session timeout that the configs of a consumer group may set."""

    group_consumer_min_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.consumer.min.heartbeat.interval.ms",
            Kind.DURATION,
            1,
            _INT32_MAX,
            is_dynamic=True,
        ),
    ] = 5_000
    """Shortest heartbeat interval that the configs of a consumer group may set."""

    group_consumer_max_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.consumer.max.heartbeat.interval.ms",
            Kind.DURATION,
            1,
            _INT32_MAX,
            is_dynamic=True,
        ),
    ] = 15_000
    """Longest heartbeat interval that the configs of a consumer group may set."""

    group_consumer_max_size: Annotated[
        int, Setting("group.consumer.max.size", Kind.INT, 1, _INT32_MAX, is_dynamic=True)
    ] = _INT32_MAX
    """Maximum number of members of one consumer group. Additional members are rejected."""

    group_consumer_assignors: Annotated[
        tuple[str, ...], Setting("group.consumer.assignors", Kind.LIST, is_dynamic=True)
    ] = CONSUMER_ASSIGNORS
    """Assignors that members of consumer groups may request: uniform and range. The first one is
    the default.
    """

    group_consumer_migration_policy: Annotated[
        str,
        Setting(
            "group.consumer.migration.policy",
            Kind.ENUM,
            choices=("disabled", "upgrade", "downgrade", "bidirectional"),
            is_dynamic=True,
        ),
    ] = "bidirectional"
    """Direction in which a non-empty group may change its protocol: upgrade, when a member with the
    consumer protocol joins a classic group; downgrade, when the last member with the consumer
    protocol leaves.
    """

    group_consumer_regex_refresh_interval_ms: Annotated[
        int,
        Setting(
            "group.consumer.regex.refresh.interval.ms",
            Kind.DURATION,
            10_000,
            _INT32_MAX,
            is_dynamic=True,
        ),
    ] = 600_000
    """How soon ACL changes affect a consumer group that subscribes with a regular expression. New
    topics are matched at the next heartbeat.
    """

    group_share_session_timeout_ms: Annotated[
        int,
        Setting("group.share.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True),
    ] = 45_000
    """Session timeout of share groups without the `share.session.timeout.ms` config."""

    group_share_min_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.share.min.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 45_000
    """Shortest session timeout that the configs of a share group may set."""

    group_share_max_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.share.max.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 60_000
    """Longest session timeout that the configs of a share group may set."""

    group_share_heartbeat_interval_ms: Annotated[
        int,
        Setting("group.share.heartbeat.interval.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True),
    ] = 5_000
    """Heartbeat interval of share groups without the `share.heartbeat.interval.ms` config."""

    group_share_min_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.share.min.heartbeat.interval.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 5_000
    """Shortest heartbeat interval that the configs of a share group may set."""

    group_share_max_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.share.max.heartbeat.interval.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 15_000
    """Longest heartbeat interval that the configs of a share group may set."""

    group_share_record_lock_duration_ms: Annotated[
        int,
        Setting(
            "group.share.record.lock.duration.ms", Kind.DURATION, 1_000, 3_600_000, is_dynamic=True
        ),
    ] = 30_000
    """Lock duration of acquired records in share groups without `share.record.lock.duration.ms`."""

    group_share_min_record_lock_duration_ms: Annotated[
        int,
        Setting(
            "group.share.min.record.lock.duration.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 15_000
    """Shortest lock duration of acquired records that the configs of a share group may set."""

    group_share_max_record_lock_duration_ms: Annotated[
        int,
        Setting(
            "group.share.max.record.lock.duration.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 60_000
    """Longest lock duration of acquired records that the configs of a share group may set."""

    group_share_max_size: Annotated[int, Setting("group.share.max.size", Kind.INT, 1, 1_000)] = 200
    """Maximum number of members of one share group. Additional members are rejected."""

    group_share_delivery_count_limit: Annotated[
        int, Setting("group.share.delivery.count.limit", Kind.INT, 2, 10)
    ] = 5
    """Maximum number of deliveries of a record to members of a share group."""

    group_share_partition_max_record_locks: Annotated[
        int, Setting("group.share.partition.max.record.locks", Kind.INT, 100, 10_000)
    ] = 2_000
    """Maximum number of in-flight records per partition in a share group. At the limit, no more
    records are delivered; a single batch may exceed it.
    """

    group_share_max_share_sessions: Annotated[
        int, Setting("group.share.max.share.sessions", Kind.INT, 1, 100_000)
    ] = 2_000
    """Maximum number of share group members that may fetch from this broker concurrently.
    Additional members are rejected.
    """

    group_streams_session_timeout_ms: Annotated[
        int,
        Setting("group.streams.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True),
    ] = 45_000
    """Session timeout of streams groups without the `streams.session.timeout.ms` config."""

    group_streams_min_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.streams.min.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 45_000
    """Shortest session timeout that the configs of a streams group may set."""

    group_streams_max_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.streams.max.session.timeout.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 60_000
    """Longest session timeout that the configs of a streams group may set."""

    group_streams_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.streams.heartbeat.interval.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 5_000
    """Heartbeat interval of streams groups without the `streams.heartbeat.interval.ms` config."""

    group_streams_min_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.streams.min.heartbeat.interval.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 5_000
    """Shortest heartbeat interval that the configs of a streams group may set."""

    group_streams_max_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.streams.max.heartbeat.interval.ms", Kind.DURATION, 1, _INT32_MAX, is_dynamic=True
        ),
    ] = 15_000
    """Longest heartbeat interval that the configs of a streams group may set."""

    group_streams_max_size: Annotated[
        int, Setting("group.streams.max.size", Kind.INT, 1, _INT32_MAX, is_dynamic=True)
    ] = _INT32_MAX
    """Maximum number of members of one streams group. Additional members are rejected."""

    group_streams_num_standby_replicas: Annotated[
        int, Setting("group.streams.num.standby.replicas", Kind.INT, 0, _INT32_MAX, is_dynamic=True)
    ] = 0
    """Number of standby tasks for each stateful task, in streams groups without the config
    `streams.num.standby.replicas`.
    """

    group_streams_max_standby_replicas: Annotated[
        int, Setting("group.streams.max.standby.replicas", Kind.INT, 0, _INT32_MAX, is_dynamic=True)
    ] = 2
    """Maximum number of standby tasks that the configs of a streams group may set."""

    group_streams_initial_rebalance_delay_ms: Annotated[
        int,
        Setting(
            "group.streams.initial.rebalance.delay.ms",
            Kind.DURATION,
            0,
            _INT32_MAX,
            is_dynamic=True,
        ),
    ] = 3_000
    """How long the first assignment of a streams group waits for more members, if the group has no
    `streams.initial.rebalance.delay.ms` config.
    """

    share_coordinator_state_topic_num_partitions: Annotated[
        int, Setting("share.coordinator.state.topic.num.partitions", Kind.INT, 1, 10_000)
    ] = 50
    """Number of partitions of `__share_group_state`. Cannot be changed once the topic exists."""

    share_coordinator_snapshot_update_records_per_snapshot: Annotated[
        int,
        Setting("share.coordinator.snapshot.update.records.per.snapshot", Kind.INT, 0, 500),
    ] = 500
    """Number of update records of a share partition between two snapshot records. A higher number
    makes writes smaller but loading after a failover slower.
    """

    topic_create_timeout_ms: Annotated[
        int, Setting("topic.create.timeout.ms", Kind.DURATION, 1, 600_000, is_dynamic=True)
    ] = 30_000
    """Timeout of a metadata change at the controller if the client does not specify one."""

    client_metrics_otlp_endpoint: Annotated[
        str, Setting("client.metrics.otlp.endpoint", Kind.TEXT)
    ] = ""
    """URL (http://HOST:PORT) of an OpenTelemetry collector, Prometheus or another receiver of OTLP
    over HTTP, to which the broker forwards client metrics (KIP-714). Empty: clients do not push
    metrics.
    """

    telemetry_max_bytes: Annotated[int, Setting("telemetry.max.bytes", Kind.BYTES, 1, 16 << 20)] = (
        1 << 20
    )
    """Maximum compressed size of one push of client metrics."""

    schema_registry_url: Annotated[str, Setting("schema.registry.url", Kind.TEXT)] = ""
    """http:// or https:// URL of a schema registry with Confluent's API, for topics with
    `penstock.value.schema.validation` or `penstock.key.schema.validation`. The URL must not contain
    credentials, which have their own setting. Empty: topics cannot have these configs.
    """

    schema_registry_basic_auth_user_info: Annotated[
        str, Setting("schema.registry.basic.auth.user.info", Kind.SECRET)
    ] = ""
    """USER:PASSWORD for the schema registry. Not available as a flag, because other processes can
    see flags: use the file or the environment variable.
    """

    schema_registry_ssl_truststore_location: Annotated[
        str, Setting("schema.registry.ssl.truststore.location", Kind.TEXT)
    ] = ""
    """PEM file with the certificates of the CAs that sign the certificate of the schema registry.
    Empty: the CA certificates of the operating system.
    """

    schema_registry_timeout_ms: Annotated[
        int, Setting("schema.registry.timeout.ms", Kind.DURATION, 100, 60_000)
    ] = 5_000
    """Timeout of schema registry requests. After a timeout, batches with an unknown schema are
    rejected with NOT_ENOUGH_REPLICAS, and their producers retry.
    """

    load_report_interval_ms: Annotated[
        int, Setting("load.report.interval.ms", Kind.DURATION, 50, 5_000)
    ] = 2_000
    """How often the broker reports its load and latencies to the controller. Balancing reacts no
    faster than this.
    """

    listener_values: tuple[tuple[str, int], ...] = ()
    """Settings of individual listeners with their values, as
    `listener.name.NAME.max.connections`.
    """

    def __post_init__(self) -> None:
        check(self)
        if self.schema_registry_url:
            credentials = "schema_registry_basic_auth_user_info"
            self._check_http("schema_registry_url", self.schema_registry_url, credentials)
        if self.client_metrics_otlp_endpoint:
            self._check_http(
                "client_metrics_otlp_endpoint",
                self.client_metrics_otlp_endpoint,
                "the variable OTEL_EXPORTER_OTLP_HEADERS",
            )
        if self.buffered_request_bytes_max < self.request_bytes_max:
            allowed = f"at least request_bytes_max ({self.request_bytes_max})"
            raise SettingInvalid(
                "buffered_request_bytes_max", self.buffered_request_bytes_max, allowed
            )
        self._check_groups()
        if not self.controllers:
            raise SettingInvalid(
                "controllers", self.controllers, "name at least one controller as host:port"
            )
        self._check_listeners()
        try:
            parse_overrides(self.connections_per_ip_overrides)
        except ValueError:
            raise SettingInvalid(
                "connections_per_ip_overrides",
                self.connections_per_ip_overrides,
                "ADDRESS:COUNT, several separated by commas",
            ) from None

    def _check_groups(self) -> None:
        names = self.group_consumer_assignors
        if not names or len(set(names)) < len(names) or not set(names) <= set(CONSUMER_ASSIGNORS):
            raise SettingInvalid(
                "group_consumer_assignors",
                names,
                f"each of {', '.join(CONSUMER_ASSIGNORS)} at most once",
            )
        for low, high, is_equal_allowed in _ORDERED:
            values = getattr(self, low), getattr(self, high)
            if values[0] > values[1] or (values[0] == values[1] and not is_equal_allowed):
                allowed = f"{'at most' if is_equal_allowed else 'less than'} {high} ({values[1]})"
                raise SettingInvalid(low, values[0], allowed)

    def limits_of(self, listener: str) -> ListenerLimits:
        """Return the connection limits of one listener by its name."""
        own = own_values(self.listener_values, listener)
        return ListenerLimits(
            own.get(_MAX_CONNECTIONS, self.connections_max),
            own.get(_CREATION_RATE, self.connection_creation_rate_max),
        )

    @property
    def bound(self) -> tuple[Listener, ...]:
        """Return the listeners to bind."""
        return parse_listeners("listeners", self.listeners)

    def advertised(self, machine_host: str, ports: dict[str, int]) -> tuple[Listener, ...]:
        """Return the advertised addresses of each listener, in the order of `bound`. An empty host
        stands for the address at which a client reached this broker.

        ports: the bound port of each listener by its name.
        """
        named: dict[str, Listener] = {}
        for text in self.advertised_listeners:
            name = _name_of(text)
            values: dict[str, str | int] = {
                "host": machine_host,
                "id": self.node_id,
                "port": ports.get(name, 0),
            }
            named[name] = parse_listeners(
                "advertised_listeners", [expand("advertised_listeners", text, values)]
            )[0]
        found = [
            named.get(listener.name, Listener(listener.name, "", 0)) for listener in self.bound
        ]
        return tuple(item._replace(port=item.port or ports[item.name]) for item in found)

    @staticmethod
    def _check_http(field: str, url: str, credentials: str) -> None:
        """Check the URL of a server. credentials: the setting for credentials."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise SettingInvalid(
                field,
                HIDDEN,
                f"http://HOST:PORT or https://HOST; credentials belong in {credentials}",
            )

    def _check_listeners(self) -> None:
        bound = self.bound
        if not bound:
            raise SettingInvalid(
                "listeners", self.listeners, "at least one, for example PLAINTEXT://127.0.0.1:9092"
            )
        names = [listener.name for listener in bound]
        for text in self.advertised_listeners:
            if _name_of(text) not in names:
                raise SettingInvalid(
                    "advertised_listeners", text, f"names of listeners: {', '.join(names)}"
                )
        check_known(self.listener_values, names)
        advertised_names = [_name_of(text) for text in self.advertised_listeners]
        if len(set(advertised_names)) < len(advertised_names):
            raise SettingInvalid(
                "advertised_listeners", self.advertised_listeners, "one address for each listener"
            )
        if uses(self.advertised_listeners, "id") and self.node_id < 0:
            raise SettingInvalid(
                "advertised_listeners",
                self.advertised_listeners,
                "{id} requires node_id to be set; {pod} and {ordinal} do not",
            )
        self.advertised("host", dict.fromkeys(names, 1))


def _name_of(text: str) -> str:
    return parse_listeners("advertised_listeners", [_with_placeholder_values(text)])[0].name


def _with_placeholder_values(text: str) -> str:
    """Expand each template with a placeholder value, to check that the rest is well formed."""
    return expand(
        "advertised_listeners", text, {"host": "h", "port": 1, "id": 1, "pod": "p", "ordinal": 1}
    )
