"""Read a controller's state as metrics at each scrape, without changing the image or keeping
references to it.
"""

from collections.abc import Iterator

from penstock.base.clock import wall_ms
from penstock.base.histogram import Latencies
from penstock.base.version import VERSION
from penstock.controller.active.controller import ActiveController
from penstock.controller.api.caller_checks import Gate
from penstock.controller.main import ControllerHealth, ControllerServer
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase
from penstock.controller.metadata.topics import NO_LEADER, is_moving
from penstock.controller.metadata.wal_store_usage import wal_store_usage
from penstock.controller.raft.replicated_log import RaftQuorum
from penstock.deploy.node.metrics import table
from penstock.deploy.node.metrics.exposition import Reading
from penstock.deploy.node.metrics.store import read_store, read_wal_store
from penstock.stream.ports import ObjectRole

_KINDS = {ObjectRole.STREAM: "stream", ObjectRole.STREAM_SET: "stream_set", ObjectRole.WAL: "wal"}


class ControllerReader:
    """Reads one process, even before its controller has started.

    Invariant: values that only the leader has are 0 on other controllers, so their sum is the value
    of the leader. All controllers report the values of the image; their maximum is correct even
    without a leader. Cost: O(brokers + moving partitions). This class must not count anything
    itself.
    """

    def __init__(self, health: ControllerHealth) -> None:
        self._health = health

    def __call__(self) -> Iterator[Reading]:
        yield from read_store(self._health.requests)
        yield from read_wal_store(self._health.wal_store_calls)
        server = self._health.server
        quorum = server.quorum
        if quorum is None or not server.is_serving:
            return
        yield (
            table.NODE_INFO,
            ("controller", str(server.controller_id), server.cluster_id, VERSION),
            1,
        )
        yield from _quorum(server, quorum)
        yield from _callers(server.gate)
        yield table.PARTITIONS_LIMIT, (), server.partitions_max
        yield from _active_controller(quorum, server.active if server.is_leading else None)
        yield from read_brokers(server.image)
        yield from read_leaders(server.image, wall_ms())
        yield from _objects(server.image, wall_ms())


def _quorum(server: ControllerServer, quorum: RaftQuorum) -> Iterator[Reading]:
    leadership = quorum.leadership
    yield table.LEADER, (), server.is_leading
    yield table.LEADER_KNOWN, (), leadership.active or bool(leadership.address)
    yield table.LEADER_CHANGES, (), quorum.leader_changes
    yield table.VOTER, (), quorum.core.is_voter
    yield table.EPOCH, (), leadership.epoch
    yield table.COMMITTED_OFFSET, (), quorum.committed_offset
    yield table.APPLIED_OFFSET, (), server.image.end_offset
    yield table.JOURNAL_RECORDS, (), quorum.committed_offset - quorum.first_offset
    yield table.FSYNC, (), quorum.writes.freeze()


def _callers(gate: Gate) -> Iterator[Reading]:
    yield table.CONTROLLER_AUTHENTICATION_FAILURES, (), gate.refused_count
    yield table.CONTROLLER_HANDSHAKES, (), gate.handshakes.begun_count
    yield table.CONTROLLER_CONNECTIONS, (), gate.handshakes.connected_count


def _active_controller(quorum: RaftQuorum, active: ActiveController | None) -> Iterator[Reading]:
    counters = None if active is None else active.runtime.counters
    yield table.COMMIT, (), Latencies() if counters is None else counters.commits.freeze()
    yield table.CONTROLLER_REQUESTS, (), 0 if counters is None else counters.requests
    yield table.CONTROLLER_REFUSED, (), 0 if counters is None else counters.refused_busy
    yield table.CONTROLLER_QUEUE, (), 0 if active is None else active.runtime.queued_count
    yield (
        table.BACKUP_RECORDS,
        (),
        0 if active is None else max(0, quorum.committed_offset - active.backup.offset),
    )
    yield table.BACKUP_AGE, (), 0 if active is None else active.backup.behind_s
    yield (
        table.SNAPSHOT_RECORDS,
        (),
        0 if active is None else max(0, quorum.committed_offset - active.snapshotter.since),
    )
    yield (
        table.MANIFEST_AGE,
        (),
        0 if active is None or active.publisher is None else active.publisher.behind_s,
    )
    yield table.SESSIONS, (), 0 if active is None else len(active.sessions.alive())
    yield table.EXCLUDED, (), 0 if active is None else active.excluded
    yield table.WAL_STORE_LEASED, (), 0 if active is None else active.leased_bytes


def read_brokers(image: MetadataImage) -> Iterator[Reading]:
    states = {"alive": 0, "fenced": 0, "draining": 0}
    for node in image.nodes:
        states["fenced" if node.fenced else "draining" if node.draining else "alive"] += 1
        yield table.BROKER_FENCED, (str(node.node_id),), node.fenced
    for state, count in states.items():
        yield table.BROKERS, (state,), count
    yield (
        table.RECOVERIES,
        (),
        sum(not image.nodes.is_alive(wal.writer) for wal in image.nodes.running_wals()),
    )


def read_leaders(image: MetadataImage, now_ms: int) -> Iterator[Reading]:
    topics = image.topics
    moving = leaderless = overdue = 0
    oldest_ms = now_ms
    for key in topics.led_by(NO_LEADER):
        partition = topics.partition(key)
        if partition is None or partition.move is None or not is_moving(partition):
            leaderless += 1
            continue
        moving += 1
        overdue += partition.move.deadline_ms < now_ms
        oldest_ms = min(oldest_ms, partition.move.started_ms)
    leaderless += sum(
        len(led)
        for leader, led in topics.leaders().items()
        if leader != NO_LEADER and not image.nodes.is_alive(leader)
    )
    yield table.TOPICS, (), len(topics)
    yield table.CLUSTER_PARTITIONS, (), topics.partition_count
    yield table.SNAPSHOT_PARTITIONS, (), image.frozen_topics.snapshot_partition_count
    yield table.LEADERLESS, (), leaderless
    yield table.MOVES, (), moving
    yield table.MOVE_AGE, (), (now_ms - oldest_ms) / 1_000
    yield table.MOVES_OVERDUE, (), overdue


def _objects(image: MetadataImage, now_ms: int) -> Iterator[Reading]:
    yield table.STREAMS, (), len(image.streams)
    for phase in ObjectPhase:
        yield table.OBJECTS, (phase.name.lower(),), image.objects.count(phase)
    for role, kind in _KINDS.items():
        yield table.OBJECTS_COMMITTED, (kind,), image.objects.committed_count(role)
    yield table.OBJECT_BYTES, (), image.objects.committed_bytes
    usage = wal_store_usage(image)
    yield table.WAL_STORE_BYTES, ("rewritable",), usage.rewritable_bytes
    yield table.WAL_STORE_BYTES, ("retained",), usage.retained_bytes
    age_ms = 0 if usage.oldest_ms is None else max(0, now_ms - usage.oldest_ms)
    yield table.WAL_STORE_AGE, (), age_ms / 1_000
