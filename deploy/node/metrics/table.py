"""Every metric that a node shows: name, type, labels, meaning. `docs/reference/metrics.md` is
written from it, readers fill it.

Invariants: names are `penstock_<part>_<what>_<unit>`, counters end in `_total`; no label has values
without bound: topics, partitions, clients and keys never are labels. A reader gives values for
metrics of this table only (`deploy.node.metrics.exposition` refuses others). Pure. Must not know
where a value comes from.
"""

from dataclasses import dataclass
from typing import Final, Literal

from deploy.node.config.definition import ROLES, Role

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """text: one sentence, for HELP and the documentation."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    roles: tuple[Role, ...]


METRICS: Final[list[Metric]] = []
"""In the order in which they are documented."""


def _metric(kind: Kind, name: str, text: str, *labels: str, roles: tuple[Role, ...]) -> Metric:
    metric = Metric(name, kind, text, labels, roles)
    METRICS.append(metric)
    return metric


def _of_any(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    return _metric(kind, name, text, *labels, roles=ROLES)


def _of_broker(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    return _metric(kind, name, text, *labels, roles=("broker",))


def _of_controller(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    return _metric(kind, name, text, *labels, roles=("controller",))


def of_role(role: Role) -> list[Metric]:
    return [metric for metric in METRICS if role in metric.roles]


# --- every node -----------------------------------------------------------------------------------

NODE_INFO: Final = _of_any(
    "gauge",
    "penstock_node_info",
    "Always 1; says who this is.",
    "role",
    "node_id",
    "cluster_id",
    "version",
)
NODE_LOOP_LAG: Final = _of_any(
    "histogram",
    "penstock_node_loop_lag_seconds",
    "How late a timer of the event loop rang, looked at ten times a second.",
)
STORE_REQUESTS: Final = _of_any(
    "counter",
    "penstock_store_requests_total",
    "Requests to the object store, repeated ones too. cancelled: given up by ourselves, for a"
    " deadline or because a hedge won.",
    "operation",
    "outcome",
)
STORE_LATENCY: Final = _of_any(
    "histogram",
    "penstock_store_request_seconds",
    "Requests to the object store until they ended, whatever the outcome.",
    "operation",
)
STORE_READ: Final = _of_any(
    "counter", "penstock_store_read_bytes_total", "Read from the object store.", "operation"
)
STORE_WRITTEN: Final = _of_any(
    "counter", "penstock_store_written_bytes_total", "Written to the object store.", "operation"
)

# --- brokers: clients -----------------------------------------------------------------------------

REQUESTS: Final = _of_broker(
    "counter",
    "penstock_broker_requests_total",
    "Requests of Kafka clients that were answered.",
    "api",
)
REQUEST_ERRORS: Final = _of_broker(
    "counter",
    "penstock_broker_request_errors_total",
    "Answers with an error; of several in one answer, the first.",
    "api",
    "error",
)
REQUEST_LATENCY: Final = _of_broker(
    "histogram",
    "penstock_broker_request_seconds",
    "Produce: from the whole request until it is durable and answered. Fetch: until answered,"
    " waiting for records included.",
    "api",
)
RECEIVED: Final = _of_broker(
    "counter",
    "penstock_broker_received_bytes_total",
    "Received from Kafka clients and other brokers.",
)
SENT: Final = _of_broker(
    "counter", "penstock_broker_sent_bytes_total", "Sent to Kafka clients and other brokers."
)
PRODUCED_BYTES: Final = _of_broker(
    "counter",
    "penstock_broker_produced_bytes_total",
    "Batches taken into partitions that are led here.",
)
PRODUCED_RECORDS: Final = _of_broker(
    "counter", "penstock_broker_produced_records_total", "Records in these batches."
)
FETCHED_BYTES: Final = _of_broker(
    "counter", "penstock_broker_fetched_bytes_total", "Batches in answers to fetches."
)
FETCHED_RECORDS: Final = _of_broker(
    "counter", "penstock_broker_fetched_records_total", "Offsets that fetches moved on by."
)
CONNECTIONS: Final = _of_broker(
    "gauge", "penstock_broker_connections", "Open connections of clients."
)
CONNECTIONS_OPENED: Final = _of_broker(
    "counter", "penstock_broker_connections_opened_total", "Connections accepted."
)
CONNECTIONS_DROPPED: Final = _of_broker(
    "counter",
    "penstock_broker_connections_dropped_total",
    "Connections closed by the broker for a reason that it logs (connection_refused).",
)
BUFFERED: Final = _of_broker(
    "gauge",
    "penstock_broker_buffered_request_bytes",
    "Requests in memory (limit: queued.max.request.bytes).",
)

# --- brokers: partitions and coordination ---------------------------------------------------------

PARTITIONS: Final = _of_broker(
    "gauge",
    "penstock_broker_partitions",
    "Partitions that are serving, opening, closing, awaited (the election is due) or failing (opens"
    " fail and are tried again).",
    "state",
)
OPENED: Final = _of_broker(
    "counter", "penstock_broker_partitions_opened_total", "Partitions that became served here."
)
CLOSED: Final = _of_broker(
    "counter", "penstock_broker_partitions_closed_total", "Partitions given up in order."
)
OPERATION_FAILURES: Final = _of_broker(
    "counter",
    "penstock_broker_partition_failures_total",
    "Opens and closes that failed and were tried again.",
    "operation",
)
OPERATION_LATENCY: Final = _of_broker(
    "histogram",
    "penstock_broker_partition_operation_seconds",
    "Opens and closes, each of up to 500 partitions.",
    "operation",
)
DAMAGED_READS: Final = _of_broker(
    "counter",
    "penstock_broker_damaged_reads_total",
    "Reads that ended at an object that is gone from the store, or corrupt.",
    "kind",
)
DAMAGED_OBJECTS: Final = _of_broker(
    "gauge",
    "penstock_broker_damaged_objects",
    "Objects that reads of the last hour found gone or corrupt.",
)
GROUPS: Final = _of_broker(
    "gauge", "penstock_broker_groups", "Consumer groups coordinated here.", "state"
)
TRANSACTIONS: Final = _of_broker(
    "gauge", "penstock_broker_transactions", "Transactional ids coordinated here.", "state"
)
SESSION: Final = _of_broker(
    "gauge",
    "penstock_broker_session",
    "1 while the session with the controller lives; nothing is acknowledged at 0.",
)
FENCED: Final = _of_broker(
    "gauge",
    "penstock_broker_fenced",
    "1 when this start may never write again; the process ends with code 3.",
)
METADATA_OFFSET: Final = _of_broker(
    "gauge", "penstock_broker_metadata_offset", "End of the metadata records that were applied."
)
METADATA_BEHIND: Final = _of_broker(
    "gauge",
    "penstock_broker_metadata_behind_records",
    "Records that the controller had committed when it last spoke and that are missing here.",
)
METADATA_SILENT: Final = _of_broker(
    "gauge",
    "penstock_broker_metadata_silent_seconds",
    "Since the controller was last heard; it speaks several times a second.",
)

# --- brokers: WAL, uploads, compaction, caches ----------------------------------------------------

WAL_PUT: Final = _of_broker(
    "histogram",
    "penstock_wal_put_seconds",
    "Slots of the WAL from the first PUT until they were certainly ours.",
)
WAL_WRITTEN: Final = _of_broker(
    "counter", "penstock_wal_written_bytes_total", "Bytes in slots of the WAL."
)
WAL_IN_FLIGHT: Final = _of_broker(
    "gauge", "penstock_wal_puts_in_flight", "Slots that are being written."
)
WAL_HEDGES: Final = _of_broker(
    "counter", "penstock_wal_hedges_total", "Second PUTs beside one that took long."
)
WAL_RETRIES: Final = _of_broker(
    "counter",
    "penstock_wal_retries_total",
    "Rounds of PUTs of a slot that failed and were tried again.",
)
WAL_WAITING: Final = _of_broker(
    "gauge", "penstock_wal_unacknowledged_bytes", "Appended and not acknowledged yet."
)
WAL_WAITING_MAX: Final = _of_broker(
    "gauge", "penstock_wal_unacknowledged_limit_bytes", "At so many, Produce requests wait."
)
WAL_WAITING_AGE: Final = _of_broker(
    "gauge",
    "penstock_wal_unacknowledged_seconds",
    "Age of the oldest append that is not acknowledged.",
)
WAL_BACKLOG: Final = _of_broker(
    "gauge",
    "penstock_wal_backlog_bytes",
    "Acknowledged, in WAL objects only: to be uploaded and committed.",
)
WAL_BACKLOG_MAX: Final = _of_broker(
    "gauge", "penstock_wal_backlog_limit_bytes", "At so many, Produce requests wait."
)
WAL_BACKLOG_AGE: Final = _of_broker(
    "gauge", "penstock_wal_backlog_seconds", "Age of the oldest bytes of the backlog."
)
WAL_BACKLOG_SLOTS: Final = _of_broker(
    "gauge", "penstock_wal_backlog_slots", "Slots that a recovery would have to read."
)
WAL_LOST_SLOTS: Final = _of_broker(
    "gauge",
    "penstock_wal_lost_slots",
    "Slots of dead brokers' WALs that this one recovers, and found lost or damaged.",
)
UPLOAD_LATENCY: Final = _of_broker(
    "histogram",
    "penstock_upload_step_seconds",
    "Steps of an upload of the log cache: prepare, put, commit; with all tries.",
    "step",
)
UPLOAD_FAILURES: Final = _of_broker(
    "counter", "penstock_upload_failures_total", "Tries of these steps that failed.", "step"
)
UPLOAD_WRITTEN: Final = _of_broker(
    "counter", "penstock_upload_written_bytes_total", "Bytes of uploaded objects."
)
UPLOAD_OBJECTS: Final = _of_broker("counter", "penstock_upload_objects_total", "Uploaded objects.")
COMPACTION_ROUNDS: Final = _of_broker(
    "counter", "penstock_compaction_rounds_total", "Exchanges of small ranges for large ones."
)
COMPACTION_FAILURES: Final = _of_broker(
    "counter", "penstock_compaction_failures_total", "Rounds that failed."
)
COMPACTION_SOURCES: Final = _of_broker(
    "counter", "penstock_compaction_sources_total", "Ranges that were compacted."
)
COMPACTION_OBJECTS: Final = _of_broker(
    "counter", "penstock_compaction_objects_total", "Objects that took their place."
)
COMPACTION_WRITTEN: Final = _of_broker(
    "counter", "penstock_compaction_written_bytes_total", "Bytes of these objects."
)
COMPACTION_LAG: Final = _of_broker(
    "gauge",
    "penstock_compaction_lag_seconds",
    "Since a look last found nothing that was worth a compaction; without work about one interval.",
)
LOG_CACHE: Final = _of_broker("gauge", "penstock_log_cache_bytes", "Recent batches in memory.")
LOG_CACHE_READS: Final = _of_broker(
    "counter",
    "penstock_log_cache_reads_total",
    "Reads of partitions: hit, or miss (older than the cache).",
    "result",
)
BLOCK_CACHE: Final = _of_broker(
    "gauge", "penstock_block_cache_bytes", "Blocks of objects in memory."
)
BLOCK_CACHE_READS: Final = _of_broker(
    "counter",
    "penstock_block_cache_reads_total",
    "Blocks wanted: hit, or miss (read from the store). Those of small objects come with the index,"
    " and are hits.",
    "result",
)

# --- controllers: the quorum ----------------------------------------------------------------------

LEADER: Final = _of_controller(
    "gauge", "penstock_controller_leader", "1 on the controller that leads and serves."
)
LEADER_KNOWN: Final = _of_controller(
    "gauge", "penstock_controller_leader_known", "1 if this controller knows who leads."
)
LEADER_CHANGES: Final = _of_controller(
    "counter",
    "penstock_controller_leader_changes_total",
    "Leaders that took over since this process began.",
)
VOTER: Final = _of_controller(
    "gauge",
    "penstock_controller_voter",
    "1 on controllers that count in the quorum; 0: a learner or outside.",
)
EPOCH: Final = _of_controller("gauge", "penstock_controller_epoch", "Raft's term.")
COMMITTED_OFFSET: Final = _of_controller(
    "gauge", "penstock_controller_committed_offset", "End of the committed metadata records."
)
APPLIED_OFFSET: Final = _of_controller(
    "gauge",
    "penstock_controller_applied_offset",
    "End of the records that are in this controller's image.",
)
JOURNAL_RECORDS: Final = _of_controller(
    "gauge", "penstock_controller_journal_records", "Committed records that the journal still has."
)
FSYNC: Final = _of_controller(
    "histogram",
    "penstock_controller_fsync_seconds",
    "Frames of the journal until they were on the disk.",
)
COMMIT: Final = _of_controller(
    "histogram",
    "penstock_controller_commit_seconds",
    "Proposals until a majority had them. Leader only.",
)
CONTROLLER_REQUESTS: Final = _of_controller(
    "counter",
    "penstock_controller_requests_total",
    "Requests that went through the writer. Leader only.",
)
CONTROLLER_REFUSED: Final = _of_controller(
    "counter",
    "penstock_controller_requests_refused_total",
    "Requests refused because too many waited. Leader only.",
)
CONTROLLER_QUEUE: Final = _of_controller(
    "gauge",
    "penstock_controller_requests_queued",
    "Requests that wait for the writer. Leader only.",
)
BACKUP_RECORDS: Final = _of_controller(
    "gauge",
    "penstock_controller_backup_behind_records",
    "Committed records that are not in the store. Leader only.",
)
BACKUP_AGE: Final = _of_controller(
    "gauge", "penstock_controller_backup_behind_seconds", "Age of the oldest of them. Leader only."
)
SNAPSHOT_RECORDS: Final = _of_controller(
    "gauge",
    "penstock_controller_snapshot_behind_records",
    "Committed records since the newest snapshot. Leader only.",
)
MANIFEST_AGE: Final = _of_controller(
    "gauge",
    "penstock_controller_manifest_behind_seconds",
    "Age of the oldest change that the public manifest lacks. Leader only.",
)

# --- controllers: what the image says -------------------------------------------------------------

SESSIONS: Final = _of_controller(
    "gauge", "penstock_controller_sessions", "Brokers whose session lives. Leader only."
)
EXCLUDED: Final = _of_controller(
    "gauge",
    "penstock_controller_excluded_brokers",
    "Brokers that are relieved of their partitions for being slow. Leader only.",
)
BROKERS: Final = _of_controller(
    "gauge", "penstock_cluster_brokers", "Registered brokers: alive, fenced or draining.", "state"
)
BROKER_FENCED: Final = _of_controller(
    "gauge", "penstock_cluster_broker_fenced", "1 if this registered broker is fenced.", "broker"
)
TOPICS: Final = _of_controller("gauge", "penstock_cluster_topics", "Topics.")
CLUSTER_PARTITIONS: Final = _of_controller("gauge", "penstock_cluster_partitions", "Partitions.")
LEADERLESS: Final = _of_controller(
    "gauge",
    "penstock_cluster_leaderless_partitions",
    "Partitions that nobody alive leads, moving ones not counted.",
)
MOVES: Final = _of_controller("gauge", "penstock_cluster_moves", "Partitions that are moving.")
MOVE_AGE: Final = _of_controller(
    "gauge",
    "penstock_cluster_oldest_move_seconds",
    "Age of the oldest move that is under way; 0: there is none.",
)
MOVES_OVERDUE: Final = _of_controller(
    "gauge", "penstock_cluster_overdue_moves", "Moves that are under way and past their deadline."
)
RECOVERIES: Final = _of_controller(
    "gauge", "penstock_cluster_wals_to_recover", "WALs of dead brokers that are not recovered yet."
)
STREAMS: Final = _of_controller("gauge", "penstock_cluster_streams", "Streams.")
OBJECTS: Final = _of_controller(
    "gauge",
    "penstock_cluster_objects",
    "Objects in the metadata: prepared, committed, destroyed (their bytes go after the read"
    " grace).",
    "phase",
)
OBJECTS_COMMITTED: Final = _of_controller(
    "gauge",
    "penstock_cluster_committed_objects",
    "Committed objects: stream, stream_set, or wal (in place).",
    "kind",
)
OBJECT_BYTES: Final = _of_controller(
    "gauge", "penstock_cluster_committed_bytes", "Bytes of committed objects."
)
