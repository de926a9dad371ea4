"""Define every metric: name, type, labels, meaning. `docs/reference/metrics.md` is generated
from it.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from penstock.deploy.node.config.definition import ROLES, Role

Kind = Literal["counter", "gauge", "histogram"]
MetricRole = Role | Literal["table-runner"]
"""The kind of process that serves a metric."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. text: one sentence, for HELP and the documentation.

    Invariants: names are `penstock_<part>_<what>_<unit>`; counters end in `_total`. No label has
    unbounded values: topics, partitions, clients and keys are never labels, except for a bounded
    number of exported topics in table runners. Readers return values only for metrics of this table
    (`deploy.node.metrics.exposition` rejects others). Pure; this module must not depend on the
    sources of values.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    roles: tuple[MetricRole, ...]


METRICS: Final[list[Metric]] = []
"""All metrics, in the order of the documentation."""


class _Part(NamedTuple):
    """Defines the metrics of one part. name: with the labels, as in `penstock_x_total{api}`."""

    roles: tuple[MetricRole, ...]

    def counter(self, name: str, text: str) -> Metric:
        return self._metric("counter", name, text)

    def gauge(self, name: str, text: str) -> Metric:
        return self._metric("gauge", name, text)

    def histogram(self, name: str, text: str) -> Metric:
        return self._metric("histogram", name, text)

    def _metric(self, kind: Kind, name: str, text: str) -> Metric:
        name, _, labels = name.rstrip("}").partition("{")
        metric = Metric(name, kind, text, tuple(filter(None, labels.split(","))), self.roles)
        METRICS.append(metric)
        return metric


_NODE: Final = _Part(ROLES)
_BROKER: Final = _Part(("broker",))
_CONTROLLER: Final = _Part(("controller",))
_TABLES: Final = _Part(("table-runner",))


def of_role(role: MetricRole) -> list[Metric]:
    return [metric for metric in METRICS if role in metric.roles]


# --- every node -----------------------------------------------------------------------------------

NODE_INFO: Final = _NODE.gauge(
    "penstock_node_info{role,node_id,cluster_id,version}", "Always 1; its labels identify the node."
)
NODE_LOOP_LAG: Final = _NODE.histogram(
    "penstock_node_loop_lag_seconds",
    "Delay of a timer of the event loop, measured ten times a second.",
)
STORE_REQUESTS: Final = _NODE.counter(
    "penstock_store_requests_total{operation,outcome}",
    "Requests to the object store, including retries. cancelled: cancelled by the node, at"
    " a deadline or because a hedged request won. sign_in: attempts to obtain AWS credentials from"
    " a profile or a role.",
)
STORE_LATENCY: Final = _NODE.histogram(
    "penstock_store_request_seconds{operation}",
    "Duration of requests to the object store, with any outcome.",
)
STORE_READ: Final = _NODE.counter(
    "penstock_store_read_bytes_total{operation}", "Bytes read from the object store."
)
STORE_WRITTEN: Final = _NODE.counter(
    "penstock_store_written_bytes_total{operation}", "Bytes written to the object store."
)
WAL_STORE_CALLS: Final = _NODE.counter(
    "penstock_wal_store_calls_total{operation,outcome}",
    "Calls to the WAL store, if there is one, each with all retries. Its requests are also part of"
    " penstock_store_requests_total.",
)
WAL_STORE_LATENCY: Final = _NODE.histogram(
    "penstock_wal_store_call_seconds{operation}",
    "Duration of calls to the WAL store, with any outcome and all retries.",
)

# --- brokers: clients -----------------------------------------------------------------------------

REQUESTS: Final = _BROKER.counter(
    "penstock_broker_requests_total{api}", "Requests of Kafka clients with a response."
)
REQUEST_ERRORS: Final = _BROKER.counter(
    "penstock_broker_request_errors_total{api,error}",
    "Responses with an error; of several errors in a response, the first one counts.",
)
DENIALS: Final = _BROKER.counter(
    "penstock_broker_authorization_denials_total{operation,resource}",
    "Requests, or parts of requests, that were denied by ACLs.",
)
REQUEST_LATENCY: Final = _BROKER.histogram(
    "penstock_broker_request_seconds{api}",
    "Duration of requests. Produce: from the complete request to the response, which waits for"
    " durability. Fetch: until the response, including the wait for records.",
)
RECEIVED: Final = _BROKER.counter(
    "penstock_broker_received_bytes_total", "Bytes received from Kafka clients and other brokers."
)
SENT: Final = _BROKER.counter(
    "penstock_broker_sent_bytes_total", "Bytes sent to Kafka clients and other brokers."
)
PRODUCED_BYTES: Final = _BROKER.counter(
    "penstock_broker_produced_bytes_total",
    "Bytes of batches appended to partitions that this broker leads.",
)
PRODUCED_RECORDS: Final = _BROKER.counter(
    "penstock_broker_produced_records_total",
    "Records appended to partitions that this broker leads.",
)
PRODUCERS: Final = _BROKER.gauge(
    "penstock_broker_producers",
    "Tracked idempotent producers, counted per partition; up to 0.3 KiB each, 1 KiB while they"
    " write.",
)
PRODUCERS_IN_ONE: Final = _BROKER.gauge(
    "penstock_broker_partition_producers_max",
    "Maximum producers of one partition; above 100000, the longest inactive ones are dropped.",
)
PRODUCERS_DROPPED: Final = _BROKER.counter(
    "penstock_broker_producers_forgotten_total",
    "Producers that were dropped before producer.id.expiration.ms, because their partition had"
    " 100000 newer ones.",
)
FETCHED_BYTES: Final = _BROKER.counter(
    "penstock_broker_fetched_bytes_total", "Bytes of batches returned by fetches."
)
FETCHED_RECORDS: Final = _BROKER.counter(
    "penstock_broker_fetched_records_total", "Offsets by which fetches advanced."
)
BATCHES_REFUSED: Final = _BROKER.counter(
    "penstock_broker_batches_refused_total{reason}",
    "Batches rejected because of their contents. records: they are unreadable or contradict the"
    " header. checksum: the batch is damaged. timestamp: outside of the limits"
    " of the topic. too_large: the batch or its decompressed records. compression: an unknown"
    " codec. no_key: a record of a compacted topic has no key. unavailable: they could not be"
    " checked, and producers retry. other: the producer was rejected, or the topic is a mirror.",
)
SCHEMA_CHECKS: Final = _BROKER.counter(
    "penstock_broker_schema_checks_total", "Batches checked against the schemas of their topics."
)
SCHEMA_REFUSALS: Final = _BROKER.counter(
    "penstock_broker_schema_refusals_total{reason}",
    "Batches rejected because of the schemas of their topics. mismatch: a record does not match."
    " too_slow, too_large: the check exceeded its limits. corrupt: the batch is damaged."
    " unavailable: they could not be checked, and producers retry.",
)
SCHEMA_PENDING: Final = _BROKER.gauge(
    "penstock_broker_schema_pending_bytes",
    "Bytes of batches waiting for their check (at most 64 MiB).",
)
CLIENT_METRICS_CLIENTS: Final = _BROKER.gauge(
    "penstock_broker_client_metrics_clients",
    "Clients with a tracked metrics subscription (at most 16,384).",
)
CLIENT_METRICS_SENT: Final = _BROKER.counter(
    "penstock_broker_client_metrics_sent_total",
    "Client metrics pushes accepted by the OTLP receiver.",
)
CLIENT_METRICS_SENT_BYTES: Final = _BROKER.counter(
    "penstock_broker_client_metrics_sent_bytes_total", "Bytes of these pushes, decompressed."
)
CLIENT_METRICS_DROPPED: Final = _BROKER.counter(
    "penstock_broker_client_metrics_dropped_total",
    "Pushes rejected by the receiver, or dropped to make room for newer ones.",
)
CLIENT_METRICS_REJECTED: Final = _BROKER.counter(
    "penstock_broker_client_metrics_rejected_data_points_total",
    "Data points that the receiver rejected in accepted pushes (partial success).",
)
CLIENT_METRICS_WAITING: Final = _BROKER.gauge(
    "penstock_broker_client_metrics_waiting_bytes",
    "Bytes of pushes waiting for the receiver (at most 16 MiB).",
)
CONNECTIONS: Final = _BROKER.gauge("penstock_broker_connections", "Open connections of clients.")
CONNECTIONS_OPENED: Final = _BROKER.counter(
    "penstock_broker_connections_opened_total", "Accepted connections."
)
CONNECTIONS_DROPPED: Final = _BROKER.counter(
    "penstock_broker_connections_dropped_total",
    "Connections that the broker closed for a logged reason (connection_refused).",
)
CONNECTIONS_HELD: Final = _BROKER.gauge(
    "penstock_broker_connections_held",
    "New connections waiting because of max.connections or max.connection.creation.rate.",
)
CONNECTIONS_REFUSED: Final = _BROKER.counter(
    "penstock_broker_connections_refused_total",
    "Connections that the broker closed because their address has too many, or connects too often.",
)
CONNECTIONS_MUTED: Final = _BROKER.gauge(
    "penstock_broker_connections_muted",
    "Connections that are muted because their clients have exceeded a quota.",
)
QUOTA_THROTTLES: Final = _BROKER.counter(
    "penstock_broker_quota_throttles_total{quota}",
    "Throttled requests, by the quota with the longest throttle time.",
)
QUOTA_THROTTLE_TIME: Final = _BROKER.counter(
    "penstock_broker_quota_throttle_seconds_total{quota}", "Throttle time of these requests."
)
QUOTA_CLIENTS: Final = _BROKER.gauge(
    "penstock_broker_quota_clients",
    "Pairs of user and client id with tracked quota usage (at most 10,000).",
)
UNAUTHENTICATED: Final = _BROKER.gauge(
    "penstock_broker_connections_unauthenticated",
    "Connections in a TLS handshake or SASL authentication.",
)
AUTHENTICATION_FAILURES: Final = _BROKER.counter(
    "penstock_broker_authentication_failures_total",
    "Failed TLS handshakes and SASL authentications.",
)
SECURITY_FILES_RELOADED: Final = _BROKER.counter(
    "penstock_broker_security_files_reloaded_total", "Reloads of changed PEM files or users."
)
SECURITY_FILES_REFUSED: Final = _BROKER.counter(
    "penstock_broker_security_files_refused_total",
    "How often changed PEM files or users could not be used, so that the previous files stay "
    "in use.",
)
FETCH_SESSIONS: Final = _BROKER.gauge("penstock_fetch_sessions", "Cached fetch sessions.")
FETCH_SESSION_PARTITIONS: Final = _BROKER.gauge(
    "penstock_fetch_session_partitions", "Partitions in all fetch sessions."
)
FETCH_SESSION_EVICTIONS: Final = _BROKER.counter(
    "penstock_fetch_session_evictions_total", "Fetch sessions evicted for new ones."
)
SHARE_SESSIONS: Final = _BROKER.gauge(
    "penstock_share_sessions",
    "Members of share groups that fetch from this broker (limit: group.share.max.share.sessions).",
)
SHARE_PARTITIONS: Final = _BROKER.gauge(
    "penstock_share_partitions", "Partitions that share groups read here, once per group."
)
SHARE_LOCKED: Final = _BROKER.gauge(
    "penstock_share_locked_records",
    "Records acquired by members of share groups and not yet acknowledged.",
)
SHARE_DELIVERED: Final = _BROKER.counter(
    "penstock_share_delivered_records_total",
    "Records delivered to members of share groups, including redeliveries.",
)
SHARE_EXPIRED: Final = _BROKER.counter(
    "penstock_share_expired_locks_total",
    "Records whose lock expired before they were acknowledged.",
)
SHARE_FAILED_WRITES: Final = _BROKER.counter(
    "penstock_share_state_write_failures_total",
    "Failed writes of share partition states; their acknowledgements returned an error.",
)
BUFFERED: Final = _BROKER.gauge(
    "penstock_broker_buffered_request_bytes",
    "Bytes of requests in memory (limit: queued.max.request.bytes).",
)

# --- brokers: partitions and coordination ---------------------------------------------------------

PARTITIONS: Final = _BROKER.gauge(
    "penstock_broker_partitions{state}",
    "Partitions by state: serving, opening, closing, awaited (election pending) or failing"
    " (opens fail and are retried).",
)
RETENTION_TRIMS: Final = _BROKER.counter(
    "penstock_retention_trims_total", "Logs from which retention deleted records, by age or size."
)
RETENTION_FAILURES: Final = _BROKER.counter(
    "penstock_retention_failures_total",
    "Logs from which retention could not delete records; the next check retries.",
)
CLEANER_PASSES: Final = _BROKER.counter(
    "penstock_log_cleaner_passes_total",
    "Passes over compacted logs that removed records or found nothing to remove.",
)
CLEANER_FAILURES: Final = _BROKER.counter(
    "penstock_log_cleaner_failures_total",
    "Failed passes over compacted logs; the next check retries, except after damage.",
)
CLEANER_REMOVED: Final = _BROKER.counter(
    "penstock_log_cleaner_removed_records_total", "Records that log compaction removed."
)
CLEANER_READ: Final = _BROKER.counter(
    "penstock_log_cleaner_read_bytes_total", "Bytes that log compaction read."
)
CLEANER_WRITTEN: Final = _BROKER.counter(
    "penstock_log_cleaner_written_bytes_total", "Bytes that log compaction wrote."
)
RACK_SENT: Final = _BROKER.counter(
    "penstock_rack_fetches_sent_total", "Fetches redirected to a broker in the rack of the client."
)
RACK_SERVED: Final = _BROKER.counter(
    "penstock_rack_fetches_served_total",
    "Fetches served to clients in this rack from partitions that other brokers lead.",
)
RACK_BYTES: Final = _BROKER.counter(
    "penstock_rack_fetched_bytes_total",
    "Bytes served to clients in this rack from partitions that other brokers lead.",
)
TAIL_LINKS: Final = _BROKER.gauge(
    "penstock_tail_links{state}",
    "Brokers from which this one requests new records for its rack: up, or down while they are"
    " unreachable or their slots cannot be read.",
)
TAIL_PARTITIONS: Final = _BROKER.gauge(
    "penstock_tail_partitions",
    "Partitions of other brokers whose new records are read here by clients in this rack.",
)
OPENED: Final = _BROKER.counter(
    "penstock_broker_partitions_opened_total", "Partitions opened on this broker."
)
CLOSED: Final = _BROKER.counter(
    "penstock_broker_partitions_closed_total", "Partitions closed gracefully."
)
OPERATION_FAILURES: Final = _BROKER.counter(
    "penstock_broker_partition_failures_total{operation}",
    "Opens and closes that failed and were retried.",
)
OPERATION_LATENCY: Final = _BROKER.histogram(
    "penstock_broker_partition_operation_seconds{operation}",
    "Duration of opens and closes, each of up to 500 partitions.",
)
DAMAGED_READS: Final = _BROKER.counter(
    "penstock_broker_damaged_reads_total{kind}", "Reads that ended at a missing or corrupt object."
)
DAMAGED_OBJECTS: Final = _BROKER.gauge(
    "penstock_broker_damaged_objects",
    "Objects found missing or corrupt by reads within the last hour.",
)
GROUPS: Final = _BROKER.gauge(
    "penstock_broker_groups{state}", "Consumer groups that this broker coordinates."
)
TRANSACTIONS: Final = _BROKER.gauge(
    "penstock_broker_transactions{state}", "Transactional ids that this broker coordinates."
)
SESSION: Final = _BROKER.gauge(
    "penstock_broker_session",
    "1 while the session with the controller is valid; at 0 nothing is acknowledged.",
)
FENCED: Final = _BROKER.gauge(
    "penstock_broker_fenced",
    "1 if this broker epoch is fenced and can never write again; the broker restarts.",
)
METADATA_OFFSET: Final = _BROKER.gauge(
    "penstock_broker_metadata_offset", "End offset of the applied metadata records."
)
METADATA_BEHIND: Final = _BROKER.gauge(
    "penstock_broker_metadata_behind_records",
    "Committed records, as of the controller's last message, that this broker has not applied.",
)
METADATA_SILENT: Final = _BROKER.gauge(
    "penstock_broker_metadata_silent_seconds",
    "Time since the controller's last message; it sends several per second.",
)

# --- brokers: WAL, uploads, compaction, caches ----------------------------------------------------

WAL_PUT: Final = _BROKER.histogram(
    "penstock_wal_put_seconds",
    "Duration of WAL writes, from the first PUT of a slot until it is confirmed.",
)
WAL_WRITTEN: Final = _BROKER.counter(
    "penstock_wal_written_bytes_total", "Bytes written to WAL slots."
)
WAL_IN_FLIGHT: Final = _BROKER.gauge("penstock_wal_puts_in_flight", "WAL slots being written.")
WAL_HEDGES: Final = _BROKER.counter(
    "penstock_wal_hedges_total", "Hedged PUTs: second PUTs of a slot whose first PUT was slow."
)
WAL_RETRIES: Final = _BROKER.counter(
    "penstock_wal_retries_total", "Failed rounds of PUTs of a slot that were retried."
)
WAL_WAITING: Final = _BROKER.gauge(
    "penstock_wal_unacknowledged_bytes", "Appended bytes that are not yet acknowledged."
)
WAL_WAITING_MAX: Final = _BROKER.gauge(
    "penstock_wal_unacknowledged_limit_bytes", "Limit in bytes at which Produce requests wait."
)
WAL_WAITING_AGE: Final = _BROKER.gauge(
    "penstock_wal_unacknowledged_seconds", "Age of the oldest unacknowledged append."
)
WAL_BACKLOG: Final = _BROKER.gauge(
    "penstock_wal_backlog_bytes",
    "Acknowledged bytes that are only in WAL slots and not yet uploaded and committed.",
)
WAL_BACKLOG_MAX: Final = _BROKER.gauge(
    "penstock_wal_backlog_limit_bytes", "Limit in bytes at which Produce requests wait."
)
WAL_BACKLOG_AGE: Final = _BROKER.gauge(
    "penstock_wal_backlog_seconds", "Age of the oldest bytes of the backlog."
)
WAL_BACKLOG_SLOTS: Final = _BROKER.gauge(
    "penstock_wal_backlog_slots", "WAL slots that a recovery would read."
)
WAL_OUTSIDE: Final = _BROKER.gauge(
    "penstock_wal_outside_wal_store",
    "1 if the WAL is in the cluster's store although the cluster has a WAL store; else 0.",
)
WAL_MOVES: Final = _BROKER.counter(
    "penstock_wal_moves_total", "Moves of the WAL out of the WAL store, or into it."
)
WAL_LOST_SLOTS: Final = _BROKER.gauge(
    "penstock_wal_lost_slots",
    "Lost or damaged slots in the WALs of dead brokers that this broker recovers.",
)
UPLOAD_LATENCY: Final = _BROKER.histogram(
    "penstock_upload_step_seconds{step}",
    "Duration of the steps of an upload of the log cache: prepare, put, commit; including retries.",
)
UPLOAD_FAILURES: Final = _BROKER.counter(
    "penstock_upload_failures_total{step}", "Failed attempts of upload steps."
)
UPLOAD_WRITTEN: Final = _BROKER.counter(
    "penstock_upload_written_bytes_total", "Bytes of uploaded objects."
)
UPLOAD_OBJECTS: Final = _BROKER.counter("penstock_upload_objects_total", "Uploaded objects.")
COMPACTION_ROUNDS: Final = _BROKER.counter(
    "penstock_compaction_rounds_total",
    "Compaction rounds, each of which replaces small ranges by larger ones.",
)
COMPACTION_FAILURES: Final = _BROKER.counter(
    "penstock_compaction_failures_total", "Compaction rounds that failed."
)
COMPACTION_CONFLICTS: Final = _BROKER.counter(
    "penstock_compaction_conflicts_total",
    "Streams that a compaction round left out, because another process replaced their ranges.",
)
COMPACTION_SOURCES: Final = _BROKER.counter(
    "penstock_compaction_sources_total", "Ranges replaced by compaction."
)
COMPACTION_OBJECTS: Final = _BROKER.counter(
    "penstock_compaction_objects_total", "Objects written by compaction."
)
COMPACTION_WRITTEN: Final = _BROKER.counter(
    "penstock_compaction_written_bytes_total", "Bytes written by compaction."
)
COMPACTION_FROM_WAL_STORES: Final = _BROKER.counter(
    "penstock_compaction_from_wal_stores_bytes_total",
    "Bytes of ranges in WAL stores that compaction has rewritten into the store.",
)
COMPACTION_LAG: Final = _BROKER.gauge(
    "penstock_compaction_lag_seconds",
    "Time since compaction last had nothing to do; about one interval without work.",
)
LOG_CACHE: Final = _BROKER.gauge("penstock_log_cache_bytes", "Bytes of recent batches in memory.")
LOG_CACHE_READS: Final = _BROKER.counter(
    "penstock_log_cache_reads_total{result}",
    "Reads of partitions: hit, or miss (older than the cache).",
)
BLOCK_CACHE: Final = _BROKER.gauge(
    "penstock_block_cache_bytes", "Bytes of objects' blocks in memory."
)
BLOCK_CACHE_READS: Final = _BROKER.counter(
    "penstock_block_cache_reads_total{result}",
    "Block reads: hit, or miss (read from the store). Blocks of small objects are read with"
    " the index and count as hits.",
)

# --- controllers: the quorum ----------------------------------------------------------------------

LEADER: Final = _CONTROLLER.gauge("penstock_controller_leader", "1 on the active controller.")
LEADER_KNOWN: Final = _CONTROLLER.gauge(
    "penstock_controller_leader_known", "1 if the leader is known to this controller."
)
LEADER_CHANGES: Final = _CONTROLLER.counter(
    "penstock_controller_leader_changes_total", "Leader changes since the process started."
)
VOTER: Final = _CONTROLLER.gauge(
    "penstock_controller_voter", "1 if this controller is a voter; 0: an observer or not a member."
)
EPOCH: Final = _CONTROLLER.gauge("penstock_controller_epoch", "Raft term.")
COMMITTED_OFFSET: Final = _CONTROLLER.gauge(
    "penstock_controller_committed_offset", "End offset of the committed metadata records."
)
APPLIED_OFFSET: Final = _CONTROLLER.gauge(
    "penstock_controller_applied_offset", "End offset of the records in this controller's image."
)
JOURNAL_RECORDS: Final = _CONTROLLER.gauge(
    "penstock_controller_journal_records", "Committed records in the journal."
)
FSYNC: Final = _CONTROLLER.histogram(
    "penstock_controller_fsync_seconds", "Duration of journal writes, including fsync."
)
COMMIT: Final = _CONTROLLER.histogram(
    "penstock_controller_commit_seconds",
    "Duration of proposals until a majority has written them. Leader only.",
)
CONTROLLER_REQUESTS: Final = _CONTROLLER.counter(
    "penstock_controller_requests_total", "Requests handled by the writer. Leader only."
)
CONTROLLER_REFUSED: Final = _CONTROLLER.counter(
    "penstock_controller_requests_refused_total",
    "Requests rejected because the queue was full. Leader only.",
)
CONTROLLER_AUTHENTICATION_FAILURES: Final = _CONTROLLER.counter(
    "penstock_controller_authentication_failures_total",
    "Calls rejected because of the role or id in the caller's certificate. Failed handshakes are"
    " not included.",
)
CONTROLLER_HANDSHAKES: Final = _CONTROLLER.counter(
    "penstock_controller_tls_handshakes_total",
    "Started TLS handshakes, including failed ones, which gRPC does not report.",
)
CONTROLLER_CONNECTIONS: Final = _CONTROLLER.counter(
    "penstock_controller_tls_connections_total",
    "TLS connections that carried at least one RPC. Other handshakes failed, or their client sent"
    " no request.",
)
CONTROLLER_QUEUE: Final = _CONTROLLER.gauge(
    "penstock_controller_requests_queued", "Requests waiting for the writer. Leader only."
)
BACKUP_RECORDS: Final = _CONTROLLER.gauge(
    "penstock_controller_backup_behind_records",
    "Committed records that are not yet in the backup. Leader only.",
)
BACKUP_AGE: Final = _CONTROLLER.gauge(
    "penstock_controller_backup_behind_seconds",
    "Age of the oldest record that is not yet in the backup. Leader only.",
)
SNAPSHOT_RECORDS: Final = _CONTROLLER.gauge(
    "penstock_controller_snapshot_behind_records",
    "Committed records since the newest snapshot. Leader only.",
)
MANIFEST_AGE: Final = _CONTROLLER.gauge(
    "penstock_controller_manifest_behind_seconds",
    "Age of the oldest change that is not yet in the manifest. Leader only.",
)

# --- controllers: contents of the image -----------------------------------------------------------

SESSIONS: Final = _CONTROLLER.gauge(
    "penstock_controller_sessions", "Brokers with a valid session. Leader only."
)
EXCLUDED: Final = _CONTROLLER.gauge(
    "penstock_controller_excluded_brokers",
    "Brokers that are excluded from leadership because they are slow. Leader only.",
)
BROKERS: Final = _CONTROLLER.gauge(
    "penstock_cluster_brokers{state}", "Registered brokers: alive, fenced or draining."
)
BROKER_FENCED: Final = _CONTROLLER.gauge(
    "penstock_cluster_broker_fenced{broker}", "1 if this registered broker is fenced."
)
TOPICS: Final = _CONTROLLER.gauge("penstock_cluster_topics", "Topics.")
CLUSTER_PARTITIONS: Final = _CONTROLLER.gauge(
    "penstock_cluster_partitions", "Partitions of topics."
)
SNAPSHOT_PARTITIONS: Final = _CONTROLLER.gauge(
    "penstock_cluster_snapshot_partitions", "Partitions of snapshots."
)
PARTITIONS_LIMIT: Final = _CONTROLLER.gauge(
    "penstock_cluster_partitions_limit",
    "Maximum partitions of topics and snapshots together (`max.partitions`).",
)
LEADERLESS: Final = _CONTROLLER.gauge(
    "penstock_cluster_leaderless_partitions",
    "Partitions without a live leader, except moving ones.",
)
MOVES: Final = _CONTROLLER.gauge("penstock_cluster_moves", "Partitions that are moving.")
MOVE_AGE: Final = _CONTROLLER.gauge(
    "penstock_cluster_oldest_move_seconds", "Age of the oldest running move; 0 if none is running."
)
MOVES_OVERDUE: Final = _CONTROLLER.gauge(
    "penstock_cluster_overdue_moves", "Running moves past their deadline."
)
RECOVERIES: Final = _CONTROLLER.gauge(
    "penstock_cluster_wals_to_recover", "WALs of dead brokers that are not yet recovered."
)
STREAMS: Final = _CONTROLLER.gauge("penstock_cluster_streams", "Streams.")
OBJECTS: Final = _CONTROLLER.gauge(
    "penstock_cluster_objects{phase}",
    "Objects in the metadata by phase: prepared, committed, destroyed (deleted after the"
    " read grace).",
)
OBJECTS_COMMITTED: Final = _CONTROLLER.gauge(
    "penstock_cluster_committed_objects{kind}",
    "Committed objects by kind: stream, stream_set, or wal (in place).",
)
OBJECT_BYTES: Final = _CONTROLLER.gauge(
    "penstock_cluster_committed_bytes", "Bytes of committed objects."
)
WAL_STORE_BYTES: Final = _CONTROLLER.gauge(
    "penstock_cluster_wal_store_bytes{kind}",
    "Bytes of committed WAL slots that only a WAL store contains, by kind: rewritable ones, which a"
    " recovery or a planned move committed and which are not rewritten yet, and those retained for"
    " deleted records that can be restored.",
)
WAL_STORE_LEASED: Final = _CONTROLLER.gauge(
    "penstock_cluster_wal_store_leased_bytes",
    "Bytes of rewritten slots in WAL stores that stay because leases of readers protect them, in"
    " the last round of deletions. Leader only.",
)
WAL_STORE_AGE: Final = _CONTROLLER.gauge(
    "penstock_cluster_wal_store_oldest_seconds",
    "Time since the oldest rewritable slot in a WAL store was committed; 0 if there is none.",
)

# --- table runners --------------------------------------------------------------------------------

TABLES_TOPICS: Final = _TABLES.gauge(
    "penstock_tables_topics", "Topics that are exported to tables."
)
TABLES_DISCOVERY_FAILING: Final = _TABLES.gauge(
    "penstock_tables_discovery_failing", "1 while the topics of the cluster cannot be read."
)
TABLES_STATUS_FAILING: Final = _TABLES.gauge(
    "penstock_tables_status_failing",
    "1 while the status for console and doctor cannot be written to the store.",
)
TABLES_LAG_SECONDS: Final = _TABLES.gauge(
    "penstock_tables_lag_seconds{topic}",
    "Age of the last moment up to which the table contains all records. Between two commits, it"
    " grows up to the commit interval.",
)
TABLES_LAG_RECORDS: Final = _TABLES.gauge(
    "penstock_tables_lag_records{topic}", "Records that the last batch found and did not export."
)
TABLES_FAILING: Final = _TABLES.gauge(
    "penstock_tables_failing{topic}", "1 while the export of the topic fails."
)
TABLES_COMMIT_TIME: Final = _TABLES.gauge(
    "penstock_tables_last_commit_timestamp_seconds{topic}",
    "Unix time of the last commit to the table, 0 if there is none.",
)
TABLES_COMMITS: Final = _TABLES.counter(
    "penstock_tables_commits_total{topic}", "Commits to the table."
)
TABLES_ROWS: Final = _TABLES.counter(
    "penstock_tables_rows_total{topic}", "Rows written to the table."
)
TABLES_REJECTED: Final = _TABLES.counter(
    "penstock_tables_dead_letters_total{topic}", "Records written to the dead-letter table."
)
TABLES_SKIPPED: Final = _TABLES.counter(
    "penstock_tables_skipped_offsets_total{topic}",
    "Offsets of unreadable records that were skipped.",
)
