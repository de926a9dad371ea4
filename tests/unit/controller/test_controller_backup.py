"""The backup of the metadata log: its objects, requests that wait for it, its writer, and a quorum
that lost its disks.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.base.ids import (
    Millis,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.controller.api import messages as m
from penstock.controller.api.errors import (
    BackupCorrupt,
    BackupFenced,
    BackupGap,
    LogBehindBackup,
    NotLeader,
    RecoveryRefused,
)
from penstock.controller.backup.layout import (
    HISTORY_GAP,
    LogObject,
    droppable,
    needed_objects,
    pack,
    splice,
    unpack,
)
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.new_streams import NewStreams
from penstock.controller.backup.writer import Backup
from penstock.controller.config import ControllerConfig
from penstock.controller.disaster_recovery.recovery import Recovery, cluster_ids
from penstock.controller.main import ControllerServer
from penstock.controller.metadata.codec import encode_record
from penstock.controller.metadata.configs import BROKER_RESOURCE, GROUP_RESOURCE
from penstock.controller.metadata.records import ControllerEpoch, KeyValueRecord, MetadataOffset
from penstock.controller.raft.messages import Base, Members
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body
from penstock.stream.errors import FormatUnknown
from penstock.stream.format.builder import RunEntry, StreamRun, build_object
from penstock.stream.format.keys import backup_key, wal_key
from penstock.stream.ports import (
    IN_STORE,
    CommitObjects,
    NewObject,
    ObjectRole,
    OpenedStream,
    OpenStream,
    StreamRange,
)
from tests.support.controller_cluster import Cluster, new_registration
from tests.support.controller_quorum import Quorum
from tests.support.newer_formats import with_metadata_version
from tests.support.waiting import PATIENCE_S, until

Start = Callable[..., Awaitable[Cluster]]


# --- layout ---------------------------------------------------------------------------------------


def raw(number: int) -> msgspec.Raw:
    return msgspec.Raw(encode_record(KeyValueRecord(f"k{number}", b"v")))


def run_of(first: int, end: int) -> LogObject:
    return LogObject(
        first,
        Base(end, 1, end, Members((0,))),
        5,
        "c",
        False,
        [raw(number) for number in range(first, end)],
    )


def fence(first: int) -> LogObject:
    return LogObject(first, Base(9, 9, first + HISTORY_GAP, Members((0,))), 5, "c", True, [])


def test_objects_survive_a_round_trip_and_every_flipped_bit_is_detected() -> None:
    item = run_of(3, 6)
    data = b"".join(pack(item))
    assert unpack("k", 3, "c", data) == item
    for at in range(len(data)):
        with pytest.raises(BackupCorrupt):
            unpack("k", 3, "c", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for first_offset, cluster_id in ((4, "c"), (3, "d")):
        with pytest.raises(BackupCorrupt):
            unpack("k", first_offset, cluster_id, data)
    with pytest.raises(BackupCorrupt):
        unpack("k", 3, "c", data[:10])
    with pytest.raises(FormatUnknown, match="format version 2"):
        unpack("k", 3, "c", with_metadata_version(data, 2))


def test_the_tail_is_assembled_from_the_middle_of_an_object_to_the_end() -> None:
    tail = splice([run_of(0, 4), run_of(4, 9), run_of(9, 10)], 6)
    assert tail.records == [raw(number) for number in range(6, 10)]
    assert (tail.end, tail.fence) == (10, None)
    assert splice([], 6).end == 6


def test_a_late_copy_of_an_old_object_is_ignored() -> None:
    assert splice([run_of(0, 4), run_of(2, 3), run_of(3, 8)], 1).records == [
        raw(number) for number in range(1, 8)
    ]


def test_a_gap_is_reported_and_a_fence_ends_the_history() -> None:
    with pytest.raises(RecoveryRefused, match=r"\[4, 5\)"):
        splice([run_of(0, 4), run_of(5, 9)], 0)
    tail = splice([run_of(0, 4), fence(4), run_of(4 + HISTORY_GAP, 5 + HISTORY_GAP)], 2)
    assert tail.end == 4
    assert tail.fence == fence(4)
    after = splice([fence(4), run_of(4 + HISTORY_GAP, 6 + HISTORY_GAP)], 4 + HISTORY_GAP)
    assert (after.end, after.fence) == (6 + HISTORY_GAP, None)


def test_records_covered_by_two_snapshots_are_deleted_but_never_a_fence_or_the_end() -> None:
    firsts = [0, 5, 9, 9 + HISTORY_GAP, 12 + HISTORY_GAP]
    assert droppable(firsts, 8) == [0]
    assert droppable(firsts, 9) == [0, 5]
    assert droppable(firsts, 99 + HISTORY_GAP) == [0, 5, 9 + HISTORY_GAP]
    assert needed_objects(firsts, 7) == firsts[1:]
    assert needed_objects(firsts, 99 + HISTORY_GAP) == firsts[-1:]


def test_new_streams_wait_for_the_backup_of_their_creation() -> None:
    streams = NewStreams(StreamId(4), MetadataOffset(10))
    streams.created(StreamId(6), MetadataOffset(20))
    streams.created(StreamId(8), MetadataOffset(30))
    assert [
        streams.needed(StreamId(number), MetadataOffset(0)) for number in (0, 3, 4, 5, 7, 8)
    ] == [10, 10, 20, 20, 30, 0]
    assert [streams.needed(StreamId(number), MetadataOffset(20)) for number in (0, 5, 6)] == [
        30,
        30,
        30,
    ]
    assert streams.needed(StreamId(7), MetadataOffset(30)) == 0


# --- waiting requests -----------------------------------------------------------------------------


class GatedStore(MemoryStore):
    """A store that accepts no backup while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.deleted: list[str] = []

    async def put_if_absent(self, key: str, body: Body) -> str:
        if "/log/" in key:
            await self.gate.wait()
        return await super().put_if_absent(key, body)

    async def delete(self, keys: Sequence[str]) -> None:
        self.deleted += keys
        await super().delete(keys)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    clusters: list[Cluster] = []

    async def begin(**settings: object) -> Cluster:
        cluster = Cluster(
            tmp_path / "controller", **{"backup_interval_ms": 20, "cluster_id": "c", **settings}
        )
        cluster.store = GatedStore()
        cluster.server = ControllerServer(cluster.config, cluster.store)
        clusters.append(cluster)
        await cluster.start()
        return cluster

    yield begin
    for cluster in clusters:
        await cluster.stop()


def gated(cluster: Cluster) -> GatedStore:
    assert isinstance(cluster.store, GatedStore)
    return cluster.store


async def completes_only_after_the_gate_opens(cluster: Cluster, work: Awaitable[object]) -> None:
    """Check that the request waits for the backup, while a write that needs no backup completes:
    the quorum makes progress.
    """
    waiting = asyncio.ensure_future(work)
    other = cluster.client()
    for number in range(3):
        await other.put_key_value(m.PutKeyValue(key=f"k{number}", value=b"v"))
    await other.close()
    assert not waiting.done()
    gated(cluster).gate.set()
    await waiting


async def test_registrations_topics_and_new_streams_wait_for_the_backup(start: Start) -> None:
    cluster = await start()
    broker = await cluster.broker()
    gated(cluster).gate.clear()
    creating = broker.client.create_topics(m.CreateTopics(topics=[m.NewTopic(name="t")]))
    waiting = asyncio.ensure_future(creating)
    await until(lambda: broker.image.topics.by_name("t") is not None)
    topic = broker.image.topics.by_name("t")
    assert topic is not None
    opening = broker.metadata.open_streams(
        [OpenStream(topic.partitions[0].data_stream_id, topic.partitions[0].leader_epoch)]
    )
    await completes_only_after_the_gate_opens(cluster, asyncio.gather(opening, waiting))
    gated(cluster).gate.clear()
    registering = broker.client.register_broker(new_registration(7))
    await completes_only_after_the_gate_opens(cluster, registering)


async def test_a_stream_that_is_backed_up_can_be_opened_without_the_store(start: Start) -> None:
    cluster = await start()
    broker = await cluster.broker()
    await broker.client.create_topics(m.CreateTopics(topics=[m.NewTopic(name="t")]))
    gated(cluster).gate.clear()
    topic = broker.image.topics.by_name("t")
    assert topic is not None
    opened = await broker.metadata.open_streams(
        [OpenStream(topic.partitions[0].data_stream_id, topic.partitions[0].leader_epoch)]
    )
    assert isinstance(opened[0], OpenedStream)
    gated(cluster).gate.set()


async def test_brokers_and_janitor_delete_objects_only_after_the_backup(start: Start) -> None:
    cluster = await start(read_grace_ms=1, janitor_interval_ms=20)
    broker, leaving = await cluster.broker(), (await cluster.broker()).node
    left_over = wal_key(leaving, WalSequence(0), IN_STORE)
    gated(cluster).gate.clear()
    await cluster.store.put(left_over, b"what a compaction has made useless")
    await broker.client.put_key_value(m.PutKeyValue(key="k", value=b"v"))
    backed_up = asyncio.ensure_future(broker.metadata.backed_up(broker.metadata.position()))
    ended = m.UnregisterBroker(
        node_id=leaving.node_id, node_epoch=leaving.node_epoch, wal_end=WalSequence(1)
    )
    await broker.client.unregister_broker(ended)
    for number in range(10):
        await broker.client.put_key_value(m.PutKeyValue(key=f"k{number}", value=b"v"))
        await asyncio.sleep(0.02)  # several rounds of the janitor, which must not delete anything
    assert not backed_up.done()
    assert gated(cluster).deleted == []
    gated(cluster).gate.set()
    await until(lambda: gated(cluster).deleted == [left_over])
    await asyncio.wait_for(backed_up, PATIENCE_S)


# --- writers -----------------------------------------------------------------------------------


async def chain(store: MemoryStore, cluster_id: str) -> list[LogObject]:
    log = BackupLog(store, cluster_id)
    return [await log.read(first) for first in (await log.listed()).first_offsets]


async def test_a_new_leader_continues_the_backup_without_uncommitted_records(
    tmp_path: Path,
) -> None:
    quorum = Quorum(tmp_path, 3, backup_interval_ms=10)
    try:
        await quorum.start()
        client = quorum.client()
        for number in range(20):
            await client.put_key_value(m.PutKeyValue(key=f"a{number}", value=b"v"))
        old = await quorum.leader()
        lost = ControllerClientOf(quorum, old)
        quorum.cut_off(old)
        never = asyncio.ensure_future(lost.put(b"never committed"))
        await until(
            lambda: any(
                server.is_leading for number, server in quorum.servers.items() if number != old
            )
        )
        for number in range(20):
            await client.put_key_value(m.PutKeyValue(key=f"b{number}", value=b"v"))
        committed = max(
            server.quorum.committed_offset
            for server in quorum.servers.values()
            if server.quorum is not None
        )
        log = BackupLog(quorum.store, "quorum")
        async with asyncio.timeout(PATIENCE_S):
            while await log.end() < committed:  # noqa: ASYNC110 - the store sends no notification
                await asyncio.sleep(0.02)
        quorum.heal()
        never.cancel()
        objects = await chain(quorum.store, "quorum")
        assert [item.first_offset for item in objects] == [
            0,
            *(item.end_offset for item in objects[:-1]),
        ]
        assert len({item.base.term for item in objects}) >= 2, "two leaders wrote it"
        data = b"".join(bytes(record) for item in objects for record in item.records)
        assert b"a19" in data
        assert b"b19" in data
        assert b"never committed" not in data
        await client.close()
    finally:
        await quorum.stop()


class ControllerClientOf:
    """Write directly through one controller's writer, like a request that it accepted while it was
    leader.
    """

    def __init__(self, quorum: Quorum, number: int) -> None:
        runtime = quorum.servers[number].runtime
        assert runtime is not None
        self._runtime = runtime

    async def put(self, value: bytes) -> None:
        from penstock.controller.managers.kv import put_key_value

        request = m.PutKeyValue(key="lost", value=value)
        await self._runtime.submit("PutKeyValue", lambda image, _: put_key_value(image, request))


async def test_a_fence_in_the_backup_stops_the_controller(start: Start) -> None:
    cluster = await start()
    log = BackupLog(cluster.store, "c")
    await until(
        lambda: cluster.server.quorum is not None and cluster.server.quorum.committed_offset > 0
    )
    end = 0
    async with asyncio.timeout(PATIENCE_S):
        while end == 0:
            end = await log.end()
            await asyncio.sleep(0.01)
    await log.put(LogObject(end, Base(9, 9, end + HISTORY_GAP, Members((0,))), 0, "c", True, []))
    client = cluster.client()
    await client.put_key_value(m.PutKeyValue(key="k", value=b"v"))
    failed = cluster.server.failed
    assert failed is not None
    with pytest.raises(BackupFenced, match="a recovery fenced this log"):
        await asyncio.wait_for(asyncio.shield(failed), PATIENCE_S)


async def test_another_history_under_the_same_cluster_id_stops_the_controller(start: Start) -> None:
    cluster = await start()
    gated(cluster).gate.clear()
    log = BackupLog(cluster.store, "c")
    end = await log.end()
    await MemoryStore.put_if_absent(
        cluster.store,
        backup_key("c", end),
        pack(LogObject(end, Base(1, 1, 1, Members((0,))), 0, "c", False, [raw(1)])),
    )
    gated(cluster).gate.set()
    failed = cluster.server.failed
    assert failed is not None
    client = cluster.client()
    await client.put_key_value(m.PutKeyValue(key="k", value=b"v"))
    with pytest.raises(BackupFenced, match="another history"):
        await asyncio.wait_for(asyncio.shield(failed), PATIENCE_S)
    await client.close()


# --- lost disks -----------------------------------------------------------------------------------


def now_ms() -> Millis:
    return Millis(1_000_000)


async def test_controllers_that_lost_their_disks_reject_requests_until_recovered(
    start: Start,
) -> None:
    """After the recovery, all data is available again."""
    cluster = await start()
    broker = await cluster.broker()
    await _alter(broker, BROKER_RESOURCE, "", "max.connections", "60")
    await cluster.snapshot()
    await _alter(broker, GROUP_RESOURCE, "g", "consumer.session.timeout.ms", "50000")
    await broker.client.create_topics(
        m.CreateTopics(topics=[m.NewTopic(name="behind-the-snapshot", partitions=3)])
    )
    before = broker.image
    await cluster.server.stop()
    shutil.rmtree(cluster.config.data_dir)
    again = ControllerServer(cluster.config, cluster.store)
    with pytest.raises(LogBehindBackup, match="penstock controller recover"):
        await again.start()
    shutil.rmtree(cluster.config.data_dir)

    recovery = Recovery(cluster.store, "c", now_ms=now_ms)
    looked = await recovery.look()
    keys = [info.key async for info in cluster.store.list("")]
    assert looked.new_offset is None
    assert (looked.topic_count, looked.partition_count, looked.gaps) == (1, 3, [])
    assert keys == [info.key async for info in cluster.store.list("")], "looking writes nothing"
    done = await recovery.run(force=True)
    assert done.backup_offset == looked.backup_offset >= before.end_offset
    assert done.new_offset == done.backup_offset + HISTORY_GAP
    assert (await recovery.run()).already_recovered

    cluster.server = ControllerServer(cluster.config, cluster.store)
    await cluster.server.start()
    fresh = await cluster.broker()
    assert fresh.node.node_epoch > broker.node.node_epoch + 1_000
    topic = fresh.image.topics.by_name("behind-the-snapshot")
    assert topic is not None
    await until(
        lambda: all(
            item.leader == fresh.node.node_id
            for item in _partitions(fresh.image, "behind-the-snapshot")
        )
    )
    fresh.image.check_invariants()
    assert fresh.image.configs.broker("") == {"max.connections": "60"}
    assert fresh.image.configs.group("g") == {"consumer.session.timeout.ms": "50000"}


async def _alter(broker: Any, kind: int, resource: str, name: str, value: str) -> None:
    change = m.ConfigChange(resource_type=kind, resource_name=resource, name=name, value=value)
    response = await broker.client.alter_configs(m.AlterConfigs(changes=[change]))
    assert [item.status for item in response.items] == [m.Status.OK]


def _partitions(image: object, name: str) -> Sequence[object]:
    topic = image.topics.by_name(name)
    return [] if topic is None else topic.partitions


async def test_a_backup_with_deleted_objects_is_reported_and_not_served(
    start: Start,
) -> None:
    cluster = await start()
    broker = await cluster.broker()
    await broker.client.create_topics(
        m.CreateTopics(topics=[m.NewTopic(name="kept", partitions=3)])
    )
    await cluster.snapshot()
    await cluster.server.stop()
    shutil.rmtree(cluster.config.data_dir)
    prefix = "meta/c/log/"
    taken = {
        info.key: bytes(await cluster.store.get(info.key))
        async for info in cluster.store.list(prefix)
    }
    await cluster.store.delete(list(taken))
    with pytest.raises(BackupGap, match="lifecycle rule"):
        await ControllerServer(cluster.config, cluster.store).start()
    for key, data in taken.items():
        await cluster.store.put_if_absent(key, data)
    shutil.rmtree(cluster.config.data_dir)
    cluster.server = ControllerServer(cluster.config, cluster.store)
    await cluster.server.start()


async def test_a_damaged_backup_does_not_stop_a_controller_with_its_disk(start: Start) -> None:
    cluster = await start()
    await cluster.broker()
    await cluster.snapshot()
    await cluster.client().put_key_value(m.PutKeyValue(key="k", value=b"v"))
    await cluster.server.stop()
    key = [info.key async for info in cluster.store.list("meta/c/log/")][-1]
    data = bytearray(await cluster.store.get(key))
    data[-1] ^= 1
    await cluster.store.put(key, bytes(data))
    cluster.server = ControllerServer(cluster.config, cluster.store)
    await cluster.server.start()
    await cluster.client().put_key_value(m.PutKeyValue(key="k", value=b"w"))
    await cluster.server.stop()
    shutil.rmtree(cluster.config.data_dir)
    for _ in range(2):
        cluster.server = ControllerServer(cluster.config, cluster.store)
        with pytest.raises(BackupCorrupt):
            await cluster.server.start()


async def test_a_cluster_without_a_snapshot_is_rebuilt_from_its_backup(start: Start) -> None:
    cluster = await start()
    await cluster.broker()
    await cluster.server.stop()
    shutil.rmtree(cluster.config.data_dir)
    with pytest.raises(LogBehindBackup):
        await ControllerServer(cluster.config, cluster.store).start()
    shutil.rmtree(cluster.config.data_dir)
    report = await Recovery(cluster.store, "c", now_ms=now_ms).run(force=True)
    assert report.snapshot_offset is None
    cluster.server = ControllerServer(cluster.config, cluster.store)
    await cluster.server.start()


async def test_a_recovery_reports_why_it_is_impossible(start: Start) -> None:
    cluster = await start()
    broker = await cluster.broker()
    await broker.client.put_key_value(m.PutKeyValue(key="k", value=b"v"))
    await cluster.snapshot()
    await broker.client.put_key_value(m.PutKeyValue(key="k2", value=b"v"))
    await cluster.snapshot()
    await cluster.server.stop()  # it would write to the store
    with pytest.raises(RecoveryRefused, match="there are: c"):
        await Recovery(cluster.store, "d", now_ms=now_ms).look()
    with pytest.raises(RecoveryRefused, match="no cluster in it at all"):
        await Recovery(MemoryStore(), "d", now_ms=now_ms).look()
    newest = max([info.modified_ms async for info in cluster.store.list("")])
    for quiet_ms, refused in ((29_000, True), (31_000, False)):
        recovery = Recovery(
            cluster.store, "c", now_ms=lambda quiet_ms=quiet_ms: Millis(newest + quiet_ms)
        )
        report = await recovery.look()
        assert report.quiet_ms is not None
        assert report.quiet_ms >= quiet_ms
        if refused:
            with pytest.raises(RecoveryRefused, match=r"may be alive.* until it is 30 s;"):
                await recovery.run()
    assert await cluster_ids(cluster.store) == ["c"]


async def test_missing_objects_stop_a_recovery_unless_the_loss_is_accepted(start: Start) -> None:
    cluster = await start()
    broker = await cluster.broker()
    created = await broker.client.create_topics(
        m.CreateTopics(topics=[m.NewTopic(name="holed", partitions=1)])
    )
    assert created.topics[0].status is m.Status.OK
    topic = broker.image.topics.by_name("holed")
    assert topic is not None
    data = topic.partitions[0].data_stream_id
    await broker.metadata.open_streams([OpenStream(data, topic.partitions[0].leader_epoch)])
    prepared = await broker.metadata.prepare_objects(3)
    for at, item in enumerate(prepared):
        await cluster.store.put(item.key, b"x")
        new = NewObject(
            item.object_id,
            item.key,
            ObjectRole.STREAM,
            1,
            (StreamRange(data, Offset(4 * at), Offset(4 * at + 4), 4, 1, Millis(1)),),
        )
        await broker.metadata.commit(CommitObjects(objects=(new,)))
    await cluster.snapshot()
    await cluster.server.stop()
    shutil.rmtree(cluster.config.data_dir)
    await cluster.store.delete([prepared[1].key])

    recovery = Recovery(
        cluster.store, "c", now_ms=lambda: Millis(time.time_ns() // 1_000_000 + 60_000)
    )
    looked = await recovery.look()
    assert [
        (gap.topic, gap.partition, gap.start_offset, gap.end_offset) for gap in looked.gaps
    ] == [("holed", 0, 4, 8)]
    assert [
        (gap.topic, gap.partition, gap.start_offset, gap.end_offset) for gap in looked.given_up
    ] == [("holed", 0, 0, 4)]
    with pytest.raises(
        RecoveryRefused,
        match=(
            rf"holed-0 offsets \[4, 8\), data stream: object {prepared[1].key} is not"
            r" there.*--accept-loss"
        ),
    ):
        await recovery.run()
    await recovery.run(accept_loss=True)
    cluster.server = ControllerServer(cluster.config, cluster.store)
    await cluster.server.start()
    fresh = await cluster.broker()
    stream = fresh.image.streams.known(data)
    assert (
        stream.start_offset,
        [(entry.start_offset, entry.end_offset) for entry in stream.entries],
    ) == (8, [(8, 12)])
    fresh.image.check_invariants()


async def test_a_slot_that_was_written_after_its_wal_was_removed_is_not_read(start: Start) -> None:
    """A process that was paused until its fence was gone can still write its next slot."""
    cluster = await start(read_grace_ms=1, late_put_grace_ms=1, janitor_interval_ms=20)
    broker, ended = await cluster.broker(), await cluster.broker()
    writer, slot = ended.node, WalSequence(9)
    request = m.UnregisterBroker(node_id=writer.node_id, node_epoch=writer.node_epoch, wal_end=slot)
    await ended.client.unregister_broker(request)
    await until(lambda: broker.image.nodes.wal(writer) is None)
    await broker.metadata.backed_up(broker.metadata.position())
    await cluster.server.stop()

    entry = RunEntry(Offset(0), Offset(1), 1, Millis(1), Millis(1), 70, b"x" * 70)
    late = build_object(
        ObjectRole.WAL, writer, slot, Millis(1), [StreamRun(StreamId(1), [entry])], depth=1
    )
    await cluster.store.put_if_absent(wal_key(writer, slot, IN_STORE), late.chunks)
    looked = await Recovery(cluster.store, "c", now_ms=now_ms).look()
    assert looked.gaps == []
    assert [wal.node_id for wal in looked.wals] == [broker.node.node_id]


async def test_an_interrupted_recovery_is_completed_by_the_next_one(start: Start) -> None:
    cluster = await start()
    await cluster.broker()
    await cluster.server.stop()

    class NoSnapshots(MemoryStore):
        async def put_if_absent(self, key: str, body: Body) -> str:
            if "/snapshots/" in key:
                raise ConnectionError("killed here")
            return await cluster.store.put_if_absent(key, body)

    broken = NoSnapshots()
    broken._objects, broken._keys = cluster.store._objects, cluster.store._keys
    with pytest.raises(ConnectionError):
        await Recovery(broken, "c", now_ms=now_ms).run(force=True)
    looked = await Recovery(cluster.store, "c", now_ms=now_ms).look()
    assert looked.history_ended
    assert not looked.already_recovered
    done = await Recovery(cluster.store, "c", now_ms=now_ms).run()
    assert done.new_offset == looked.backup_offset + HISTORY_GAP


class HandedOver:
    """A quorum that was leader and has not noticed that another controller is now. Its log ends
    below the backup of that controller.
    """

    committed_offset = MetadataOffset(5)
    first_offset = MetadataOffset(0)

    async def confirm(self, epoch: ControllerEpoch) -> None:
        raise NotLeader


async def test_a_replaced_leader_does_not_mistake_a_newer_backup_for_a_lost_disk() -> None:
    store = MemoryStore()
    log = BackupLog(store, "c")
    await log.put(run_of(0, 9))
    quorum: Any = HandedOver()
    config = ControllerConfig(data_dir=Path("unused"), cluster_id="c")
    backup = Backup(config, quorum, log, ControllerEpoch(1), lambda: Millis(0))
    with pytest.raises(NotLeader):
        await backup.open()
