"""Read a broker's counters as metrics at each scrape, without changing or storing anything.

Cost: O(partitions + groups + transactional ids). This module must not count anything itself.
"""

from collections import Counter
from collections.abc import Iterator

from penstock.base.acls import Operation, ResourceType
from penstock.base.version import VERSION
from penstock.broker.client_metrics.sender import SentCounts
from penstock.broker.errors import ErrorCode
from penstock.broker.groups.common.model import GroupState
from penstock.broker.health import BrokerHealth
from penstock.broker.node import Broker
from penstock.broker.requests.record_checks import BATCH_REASONS, REASONS
from penstock.broker.transactions.model import TransactionState
from penstock.deploy.node.metrics import table
from penstock.deploy.node.metrics.exposition import Reading
from penstock.deploy.node.metrics.store import read_store, read_wal_store
from penstock.protocol import apis
from penstock.stream.read.damage import DAMAGE_KINDS

_ERROR_NAMES = {int(code): code.name for code in ErrorCode}


class BrokerReader:
    """Reads one process, even before its broker has started."""

    def __init__(self, health: BrokerHealth) -> None:
        self._health = health

    def __call__(self) -> Iterator[Reading]:
        yield from read_store(self._health.requests)
        yield from read_wal_store(self._health.wal_store_calls)
        broker = self._health.broker
        if broker is None:
            return
        yield table.NODE_INFO, ("broker", str(broker.node_id), broker.cluster_id, VERSION), 1
        yield from _clients(broker)
        yield from _shares(broker)
        yield from _partitions(broker)
        yield from _coordinators(broker)
        yield from _metadata(broker)
        yield from _wal(broker)
        yield from _background(broker)
        yield from _caches(broker)


def _clients(broker: Broker) -> Iterator[Reading]:
    server, traffic = broker.server, broker.partitions.traffic()
    for key, count in server.requests.responses.items():
        yield table.REQUESTS, (_api(key),), count
    for (key, code), count in server.requests.errors.items():
        yield table.REQUEST_ERRORS, (_api(key), _ERROR_NAMES.get(code, str(code))), count
    for key, latencies in server.requests.latencies.items():
        yield table.REQUEST_LATENCY, (_api(key),), latencies.freeze()
    yield table.RECEIVED, (), server.received_bytes
    yield table.SENT, (), server.sent_bytes
    yield table.PRODUCED_BYTES, (), traffic.bytes_in
    yield table.PRODUCED_RECORDS, (), traffic.records_in
    yield table.FETCHED_BYTES, (), traffic.bytes_out
    yield table.FETCHED_RECORDS, (), traffic.records_out
    if broker.authorizer is not None:
        for (operation, kind), count in broker.authorizer.audit.denied.items():
            labels = (Operation(operation).name, ResourceType(kind).name)
            yield table.DENIALS, labels, count
    checks = broker.record_checks
    for reason in BATCH_REASONS:
        yield table.BATCHES_REFUSED, (reason,), checks.refused_batches[reason]
    yield table.SCHEMA_CHECKS, (), checks.checked_count
    for reason in REASONS:
        yield table.SCHEMA_REFUSALS, (reason,), checks.refused[reason]
    yield table.SCHEMA_PENDING, (), checks.pending_bytes
    pushed = broker.client_metrics
    counts = SentCounts() if pushed is None else pushed.sender.counts
    yield table.CLIENT_METRICS_CLIENTS, (), 0 if pushed is None else len(pushed.instances)
    yield table.CLIENT_METRICS_SENT, (), counts.sent
    yield table.CLIENT_METRICS_SENT_BYTES, (), counts.sent_bytes
    yield table.CLIENT_METRICS_DROPPED, (), counts.dropped
    yield table.CLIENT_METRICS_REJECTED, (), counts.rejected_data_points
    yield table.CLIENT_METRICS_WAITING, (), counts.waiting_bytes
    yield table.CONNECTIONS, (), server.connection_count
    yield table.CONNECTIONS_OPENED, (), server.accepted_count
    yield table.CONNECTIONS_DROPPED, (), server.closed_count
    yield table.CONNECTIONS_HELD, (), server.admission.held_count
    yield table.CONNECTIONS_REFUSED, (), server.admission.refused_count
    yield table.CONNECTIONS_MUTED, (), len(server.muted)
    for quota, throttles in broker.quotas.throttles.items():
        yield table.QUOTA_THROTTLES, (quota,), throttles.count
        yield table.QUOTA_THROTTLE_TIME, (quota,), throttles.total_ms / 1_000
    yield table.QUOTA_CLIENTS, (), len(broker.quotas)
    yield table.UNAUTHENTICATED, (), server.unauthenticated_count
    yield table.AUTHENTICATION_FAILURES, (), broker.access.failed_count
    yield table.SECURITY_FILES_RELOADED, (), broker.access.files.reload_count
    yield table.SECURITY_FILES_REFUSED, (), broker.access.files.refused_count
    yield table.BUFFERED, (), server.memory.buffered_bytes
    yield table.FETCH_SESSIONS, (), len(broker.fetch_sessions)
    yield table.FETCH_SESSION_PARTITIONS, (), broker.fetch_sessions.partition_count
    yield table.FETCH_SESSION_EVICTIONS, (), broker.fetch_sessions.evicted_count


def _shares(broker: Broker) -> Iterator[Reading]:
    shares = broker.shares
    yield table.SHARE_SESSIONS, (), len(broker.share_sessions)
    yield table.SHARE_PARTITIONS, (), len(shares)
    yield table.SHARE_LOCKED, (), shares.locked_count
    yield table.SHARE_DELIVERED, (), shares.counts.delivered
    yield table.SHARE_EXPIRED, (), shares.counts.expired
    yield table.SHARE_FAILED_WRITES, (), shares.counts.failed_writes


def _api(key: int) -> str:
    api = apis.APIS.get(key)
    return "unknown" if api is None else api.name


def _partitions(broker: Broker) -> Iterator[Reading]:
    partitions = broker.partitions
    for state, count in partitions.states()._asdict().items():
        yield table.PARTITIONS, (state,), count
    producers = partitions.producers()
    yield table.PRODUCERS, (), producers.total
    yield table.PRODUCERS_IN_ONE, (), producers.in_one_partition
    yield table.PRODUCERS_DROPPED, (), producers.dropped
    yield table.OPENED, (), partitions.opens.partitions
    yield table.CLOSED, (), partitions.closes.partitions
    for operation, counts in (("open", partitions.opens), ("close", partitions.closes)):
        yield table.OPERATION_FAILURES, (operation,), counts.failures
        yield table.OPERATION_LATENCY, (operation,), counts.latencies.freeze()
    damage = broker.storage.damage
    for kind in DAMAGE_KINDS:
        yield table.DAMAGED_READS, (kind,), damage.reads[kind]
    yield table.DAMAGED_OBJECTS, (), len(damage.listed(broker.server.loop.time()))


def _coordinators(broker: Broker) -> Iterator[Reading]:
    groups: Counter[GroupState] = Counter(broker.groups.states())
    for state in GroupState:
        yield table.GROUPS, (state.value,), groups[state]
    transactions = Counter(transaction.state for transaction in broker.transactions.listed())
    for phase in TransactionState:
        yield table.TRANSACTIONS, (phase.label,), transactions[phase]


def _metadata(broker: Broker) -> Iterator[Reading]:
    follower = broker.follower
    yield table.SESSION, (), follower.can_write()
    yield table.FENCED, (), follower.fenced or broker.storage.fenced
    yield table.METADATA_OFFSET, (), follower.offset
    yield table.METADATA_BEHIND, (), follower.behind_count
    yield table.METADATA_SILENT, (), follower.silent_s


def _wal(broker: Broker) -> Iterator[Reading]:
    storage, config = broker.storage, broker.stream_config
    wal, puts = storage.wal, storage.wal.puts
    yield table.WAL_PUT, (), puts.latencies.freeze()
    yield table.WAL_WRITTEN, (), puts.written_bytes
    yield table.WAL_IN_FLIGHT, (), wal.in_flight_count
    yield table.WAL_HEDGES, (), puts.hedge_count
    yield table.WAL_RETRIES, (), puts.retry_count
    yield table.WAL_WAITING, (), storage.backlog_bytes
    yield table.WAL_WAITING_MAX, (), config.wal_unacknowledged_bytes_max
    yield table.WAL_WAITING_AGE, (), wal.unacknowledged_s
    yield table.WAL_BACKLOG, (), storage.uncommitted_bytes
    yield table.WAL_BACKLOG_MAX, (), config.log_cache_bytes_max
    yield table.WAL_BACKLOG_AGE, (), storage.uncommitted_s
    yield table.WAL_BACKLOG_SLOTS, (), storage.uncommitted_slot_count
    is_outside = storage.wal_store is None and broker.image.current_wal_store is not None
    yield table.WAL_OUTSIDE, (), int(is_outside)
    yield table.WAL_MOVES, (), storage.wal_move_count
    yield (
        table.WAL_LOST_SLOTS,
        (),
        sum(len(error.keys) for error in broker.recoveries.damaged.values()),
    )


def _background(broker: Broker) -> Iterator[Reading]:
    yield table.RETENTION_TRIMS, (), broker.retention.trimmed_partitions
    yield table.RETENTION_FAILURES, (), broker.retention.failed_partitions
    racks = broker.partitions.committed_reads
    yield table.RACK_SENT, (), racks.sent
    yield table.RACK_SERVED, (), racks.served
    yield table.RACK_BYTES, (), racks.size_bytes
    tails = broker.tails.counts()
    yield table.TAIL_LINKS, ("up",), tails.up
    yield table.TAIL_LINKS, ("down",), tails.down
    yield table.TAIL_PARTITIONS, (), tails.partitions
    cleaner = broker.cleaner
    yield table.CLEANER_PASSES, (), cleaner.passes
    yield table.CLEANER_FAILURES, (), cleaner.failures
    yield table.CLEANER_REMOVED, (), cleaner.removed_records
    yield table.CLEANER_READ, (), cleaner.read_bytes
    yield table.CLEANER_WRITTEN, (), cleaner.written_bytes
    uploads, compactions = broker.storage.uploads, broker.compactor.counts
    for step, latencies in uploads.latencies.items():
        yield table.UPLOAD_LATENCY, (step,), latencies.freeze()
        yield table.UPLOAD_FAILURES, (step,), uploads.failures[step]
    yield table.UPLOAD_WRITTEN, (), uploads.written_bytes
    yield table.UPLOAD_OBJECTS, (), uploads.object_count
    yield table.COMPACTION_ROUNDS, (), compactions.rounds
    yield table.COMPACTION_FAILURES, (), compactions.failures
    yield table.COMPACTION_CONFLICTS, (), compactions.conflicts
    yield table.COMPACTION_SOURCES, (), compactions.sources
    yield table.COMPACTION_OBJECTS, (), compactions.objects
    yield table.COMPACTION_WRITTEN, (), compactions.written_bytes
    yield table.COMPACTION_FROM_WAL_STORES, (), compactions.from_wal_stores_bytes
    yield table.COMPACTION_LAG, (), max(0.0, broker.server.loop.time() - compactions.settled_at)


def _caches(broker: Broker) -> Iterator[Reading]:
    storage = broker.storage
    yield table.LOG_CACHE, (), storage.cached_bytes
    yield table.LOG_CACHE_READS, ("hit",), storage.cached_read_count
    yield table.LOG_CACHE_READS, ("miss",), storage.missed_read_count
    yield table.BLOCK_CACHE, (), storage.blocks.size_bytes
    yield table.BLOCK_CACHE_READS, ("hit",), storage.blocks.hit_count
    yield table.BLOCK_CACHE_READS, ("miss",), storage.blocks.miss_count
