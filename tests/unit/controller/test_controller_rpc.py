"""A controller and its clients over real sockets: committed changes are visible, lost requests are
repeated, dead brokers are fenced.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import (
    Millis,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.controller.api import follower as follower_module
from penstock.controller.api import messages as m
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import (
    DataDirInUse,
    JournalFailed,
    JournalStateLost,
    RequestRefused,
    StoreNotEmpty,
)
from penstock.controller.api.follower import FollowerFenced, FollowerStopped, MetadataFollower
from penstock.controller.api.transport import (
    EPOCH_KEY,
    Channel,
    RpcFailed,
    StatusCode,
    StreamCall,
)
from penstock.controller.main import ControllerServer
from penstock.controller.managers.result import Result
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.records import MetadataOffset
from penstock.objectstore.memory import MemoryStore
from penstock.stream.errors import (
    NotContiguous,
    RangesReplaced,
    StreamFenced,
    StreamNotClosed,
    WalFenced,
)
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import (
    IN_STORE,
    BrokerIncarnation,
    CloseStream,
    CommitObjects,
    NewObject,
    ObjectRole,
    OpenedStream,
    OpenStream,
    ReplacedRange,
    StreamRange,
)
from tests.support.controller_cluster import Broker, Cluster, new_registration
from tests.support.stream_server import StreamServer
from tests.support.waiting import PATIENCE_S, until

Start = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    clusters: list[Cluster] = []

    async def begin(**settings: object) -> Cluster:
        cluster = Cluster(tmp_path / "controller", **settings)
        clusters.append(cluster)
        await cluster.start()
        return cluster

    yield begin
    for cluster in clusters:
        await cluster.stop()


async def topic(broker: Broker, name: str, partitions: int = 1) -> UUID:
    created = await broker.client.create_topics(
        m.CreateTopics(topics=[m.NewTopic(name=name, partitions=partitions)])
    )
    assert created.topics[0].status is m.Status.OK, created
    assert created.topics[0].topic_id is not None
    return created.topics[0].topic_id


def data_stream(broker: Broker, name: str, partition: int = 0) -> OpenStream:
    found = broker.image.topics.by_name(name)
    assert found is not None
    state = found.partitions[partition]
    return OpenStream(state.data_stream_id, state.leader_epoch)


def leader(broker: Broker, name: str) -> BrokerIncarnation:
    found = broker.image.topics.by_name(name)
    assert found is not None
    return BrokerIncarnation(found.partitions[0].leader, found.partitions[0].leader_node_epoch)


def part(stream_id: StreamId, start: int, end: int) -> StreamRange:
    return StreamRange(
        stream_id, Offset(start), Offset(end), end - start, 100 * (end - start), Millis(1)
    )


def slot(writer: BrokerIncarnation, sequence: int, *ranges: StreamRange) -> NewObject:
    return NewObject(
        None, wal_key(writer, WalSequence(sequence), IN_STORE), ObjectRole.WAL, 1_000, ranges
    )


async def test_a_controller_on_port_zero_reports_its_port_and_describes_itself(
    start: Start,
) -> None:
    cluster = await start()
    client = cluster.client()
    status = await client.describe()
    assert cluster.server.port > 0
    assert status.active
    assert status.cluster_id == cluster.server.cluster_id
    assert status.controller_epoch == 1
    assert status.committed_offset >= 1


async def test_the_image_of_the_client_contains_a_change_when_the_call_returns(
    start: Start,
) -> None:
    cluster = await start()
    one, two = await cluster.broker(), await cluster.broker()
    assert (one.node.node_id, two.node.node_id) == (1, 2)
    topic_id = await topic(one, "orders", partitions=3)
    found = one.image.topics.by_name("orders")
    assert found is not None
    assert (found.topic_id, len(found.partitions)) == (topic_id, 3)
    await two.follower.reached(one.follower.offset, asyncio.get_running_loop().time() + PATIENCE_S)
    assert two.image == one.image
    assert one.follower.can_write()


async def test_streams_are_opened_committed_and_closed_through_the_stream_port(
    start: Start,
) -> None:
    cluster = await start()
    broker = await cluster.broker()
    await topic(broker, "orders")
    stream = data_stream(broker, "orders")
    opened = await broker.metadata.open_streams([stream, OpenStream(StreamId(999), StreamEpoch(0))])
    assert opened[0] == OpenedStream(stream.stream_id, stream.epoch, Offset(0), Offset(0))
    assert isinstance(opened[1], StreamFenced)

    written = slot(broker.node, 0, part(stream.stream_id, 0, 10))
    await broker.metadata.commit(CommitObjects(objects=(written,)))
    await broker.metadata.commit(CommitObjects(objects=(written,)))
    assert broker.metadata.committed_end(stream.stream_id) == 10
    (found,) = broker.metadata.objects(stream.stream_id, Offset(0), Offset(99), 10)
    assert (found.key, found.range.end_offset) == (written.key, 10)
    assert broker.metadata.streams_owned_by(broker.node) == {stream.stream_id: 10}

    with pytest.raises(NotContiguous) as gap:
        await broker.metadata.commit(
            CommitObjects(objects=(slot(broker.node, 2, part(stream.stream_id, 20, 30)),))
        )
    assert (gap.value.expected, gap.value.found) == (10, 20)

    prepared = await broker.metadata.prepare_objects(3)
    assert len({item.object_id for item in prepared}) == 3
    await broker.metadata.trim_stream(stream.stream_id, stream.epoch, Offset(4))
    close = CloseStream(stream.stream_id, stream.epoch, Offset(10))
    await broker.metadata.commit(CommitObjects(closes=(close,), wal_committed=WalSequence(1)))
    assert broker.metadata.streams_owned_by(broker.node) == {}


async def test_error_of_replaced_ranges_comes_with_an_image_that_shows_them(start: Start) -> None:
    cluster = await start()
    broker = await cluster.broker()
    await topic(broker, "orders")
    stream = data_stream(broker, "orders")
    await broker.metadata.open_streams([stream])
    ten = part(stream.stream_id, 0, 10)
    await broker.metadata.commit(CommitObjects(objects=(slot(broker.node, 0, ten),)))
    (found,) = broker.metadata.objects(stream.stream_id, Offset(0), Offset(10), 2)
    old = ReplacedRange(stream.stream_id, found.object_id, Offset(0), Offset(10))
    for number, target in enumerate(await broker.metadata.prepare_objects(2)):
        new = NewObject(target.object_id, target.key, ObjectRole.STREAM, 100, (ten,))
        commit = CommitObjects(objects=(new,), replaced=(old,))
        if number == 0:
            await broker.metadata.commit(commit)
            continue
        with pytest.raises(RangesReplaced, match=r"does not hold \[0, 10\) any more"):
            await broker.metadata.commit(commit)


async def test_the_error_contains_the_stream_of_another_broker(start: Start) -> None:
    cluster = await start()
    one, two = await cluster.broker(), await cluster.broker()
    await topic(one, "orders")
    stream = data_stream(one, "orders")
    owner, other = (one, two) if leader(one, "orders") == one.node else (two, one)
    await owner.metadata.open_streams([stream])
    with pytest.raises(StreamFenced) as fenced:
        await other.metadata.commit(
            CommitObjects(objects=(slot(other.node, 0, part(stream.stream_id, 0, 5)),))
        )
    assert fenced.value.stream_id == stream.stream_id
    (refused,) = await other.metadata.open_streams([stream])
    assert isinstance(refused, StreamFenced | StreamNotClosed)


async def test_observers_do_not_take_the_places_of_brokers(start: Start) -> None:
    cluster = await start(followers_count_max=1)
    observer, other = (MetadataFollower(cluster.client()) for _ in range(2))
    await observer.start(PATIENCE_S)
    with pytest.raises(TimeoutError):
        await other.start(0.5)
    await other.stop()
    broker = await cluster.broker()
    assert broker.follower.can_write()
    await observer.stop()


async def test_a_dead_broker_is_fenced_recovered_and_replaced_as_leader(
    start: Start,
) -> None:
    cluster = await start()
    brokers = [await cluster.broker(), await cluster.broker()]
    await topic(brokers[0], "orders")
    stream = data_stream(brokers[0], "orders")
    dead = next(broker for broker in brokers if broker.node == leader(brokers[0], "orders"))
    alive = next(broker for broker in brokers if broker is not dead)
    await dead.metadata.open_streams([stream])
    await dead.stop()

    def recoverer() -> BrokerIncarnation | None:
        wal = alive.image.nodes.wal(dead.node)
        return None if wal is None else wal.recoverer

    await until(lambda: recoverer() == alive.node)
    assert not alive.image.nodes.is_alive(dead.node)
    assert leader(alive, "orders") == dead.node
    assert alive.metadata.streams_owned_by(dead.node) == {stream.stream_id: 0}
    objects = [
        slot(dead.node, 0, part(stream.stream_id, 0, 7)),
        slot(dead.node, 1, part(stream.stream_id, 7, 9)),
    ]
    await alive.metadata.commit_recovered(dead.node, objects, done=True, end=WalSequence(2))
    assert leader(alive, "orders") == alive.node
    (opened,) = await alive.metadata.open_streams([data_stream(alive, "orders")])
    assert isinstance(opened, OpenedStream)
    assert opened.end_offset == 9


async def test_a_broker_that_dies_while_it_registers_is_fenced(start: Start) -> None:
    """The journal is slow, so the broker is gone before its registration is committed."""
    cluster = await start(session_timeout_ms=1_500)
    gate = threading.Event()
    cluster.server._directory.thread.submit(gate.wait)
    request = new_registration()
    channel = Channel(cluster.server.address)

    async def register() -> bytes:
        return await channel.unary("RegisterBroker")(
            msgspec.msgpack.encode(request), timeout=PATIENCE_S, metadata=((EPOCH_KEY, "1"),)
        )

    registering = asyncio.create_task(register())
    await until(lambda: len(list(cluster.runtime.image.nodes)) == 1)
    registering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await registering
    await channel.close()
    gate.set()
    await until(lambda: [node.fenced for node in cluster.runtime.image.nodes] == [True])


async def test_a_broker_is_notified_of_a_fence_that_was_committed_late(start: Start) -> None:
    """The request that fences the source of a move times out before the slow journal commits it."""
    cluster = await start(request_timeout_ms=300, move_timeout_ms=3_000)
    brokers = [await cluster.broker(), await cluster.broker()]
    await topic(brokers[0], "orders")
    source = next(broker for broker in brokers if broker.node == leader(brokers[0], "orders"))
    target = next(broker for broker in brokers if broker is not source)
    await source.metadata.open_streams([data_stream(source, "orders")])
    await target.client.alter_reassignments(
        m.AlterReassignments(
            partitions=[
                m.PartitionTarget(topic="orders", partition=0, replicas=[target.node.node_id])
            ]
        )
    )
    gate = threading.Event()
    cluster.server._directory.thread.submit(gate.wait)
    runtime = cluster.runtime
    await until(lambda: not runtime.image.nodes.is_alive(source.node))
    with pytest.raises(TimeoutError):
        await runtime.submit("LaterRequest", lambda _image, _now: Result())
    gate.set()
    await until(lambda: source.follower.fenced)


async def test_a_fenced_broker_is_notified_and_its_writes_are_rejected(start: Start) -> None:
    cluster = await start()
    broker, observer = await cluster.broker(), await cluster.broker()
    received: list[bool] = []
    broker.follower.on_session(received.append)
    again = new_registration(broker.node.node_id)
    registered = await observer.client.register_broker(again)
    assert registered.node_epoch > broker.node.node_epoch
    with pytest.raises(WalFenced):
        await broker.metadata.prepare_objects(1)
    await until(lambda: broker.follower.fenced)
    assert received[-1] is False
    assert not broker.follower.can_write()
    with pytest.raises(FollowerStopped):
        await broker.follower.reached(MetadataOffset(10_000), asyncio.get_running_loop().time() + 1)
    late = MetadataFollower(observer.client, broker.node)
    with pytest.raises(FollowerFenced):
        await late.start()
    await late.stop()


async def test_a_hung_broker_stops_writing_before_it_is_fenced(
    start: Start,
) -> None:
    cluster = await start(session_timeout_ms=1_500, session_grace_ms=1_500)
    broker, other = await cluster.broker(), await cluster.broker()
    lost = asyncio.Event()
    fenced_when_lost: list[bool] = []
    reported: list[bool] = []

    def on_session(has_session: bool) -> None:
        reported.append(broker.follower.fenced)
        if not has_session and not lost.is_set():
            fenced_when_lost.append(not other.image.nodes.is_alive(broker.node))
            lost.set()

    broker.follower.on_session(on_session)
    heartbeats = next(
        task for task in asyncio.all_tasks() if task.get_name() == f"heartbeats-{broker.node}"
    )
    coroutine = heartbeats.get_coro()
    # gRPC ends the stream if a write is cancelled.
    await until(lambda: getattr(coroutine.cr_await, "__name__", "") == "sleep")
    heartbeats.cancel()
    await until(lambda: not other.image.nodes.is_alive(broker.node))
    await until(lost.is_set)
    assert fenced_when_lost == [False]
    await until(lambda: reported[-1])
    await until(other.follower.can_write)


async def test_a_controller_restart_loses_nothing_and_fences_no_broker(start: Start) -> None:
    cluster = await start()
    broker = await cluster.broker()
    await topic(broker, "orders", partitions=2)
    sessions: list[bool] = []
    broker.follower.on_session(sessions.append)
    before = broker.image
    epoch = (await broker.client.describe()).controller_epoch
    await cluster.restart()
    await broker.client.put_key_value(m.PutKeyValue(key="k", value=b"v"))
    assert (await broker.client.describe()).controller_epoch == epoch + 1
    assert broker.image is before, "a follower continues from its position"
    assert broker.image.topics.by_name("orders") is not None
    assert broker.image.nodes.is_alive(broker.node)
    assert broker.follower.can_write()
    assert False not in sessions, "a restart of the controller stops no writes"
    fresh = MetadataFollower(broker.client)
    await fresh.start(PATIENCE_S)
    assert fresh.image == broker.image
    await fresh.stop()


async def test_ten_thousand_partitions_reach_followers_in_messages_of_bounded_size(
    start: Start,
) -> None:
    """Both from the log and from a snapshot. A follower applies one message per iteration of its
    event loop.
    """
    cluster = await start()
    broker = await cluster.broker()
    fed: list[MetadataDelta] = []
    broker.follower.subscribe(lambda delta, _: fed.append(delta))
    await topic(broker, "orders", partitions=10_000)
    await until(lambda: sum(len(delta.partitions) for delta in fed) == 10_000)
    assert max(len(delta.partitions) + len(delta.stream_ids) for delta in fed) < 30_000 / 4
    for key in ("k1", "k2"):
        await cluster.snapshot()
        await broker.client.put_key_value(m.PutKeyValue(key=key, value=b"v"))
    await cluster.snapshot()
    sizes: list[int] = []
    loading = MetadataFollower(broker.client)
    receive = loading._receive

    def note(batch: m.MetadataBatch, address: str) -> None:
        if batch.snapshot:
            sizes.append(sum(len(memoryview(record)) for record in batch.records))
        receive(batch, address)

    loading._receive = note
    await loading.start(PATIENCE_S)
    assert loading.image == broker.image
    assert len(sizes) >= 4
    assert max(sizes) < cluster.config.batch_bytes_max + 1_000
    await loading.stop()


async def test_brokers_and_controllers_load_a_snapshot_if_the_log_is_truncated(
    start: Start,
) -> None:
    cluster = await start(batch_bytes_max=200)
    broker = await cluster.broker()
    await topic(broker, "orders", partitions=20)
    await cluster.snapshot()
    await broker.client.put_key_value(m.PutKeyValue(key="k1", value=b"v"))
    await cluster.snapshot()
    await broker.client.put_key_value(m.PutKeyValue(key="k2", value=b"v"))
    await cluster.snapshot()
    kept = [info.key.split("/")[2] async for info in cluster.store.list("meta/")]
    assert kept == ["log", "snapshots", "snapshots", "snapshots"], (
        "of the backup, what two snapshots hold is dropped"
    )
    deltas: list[MetadataDelta] = []
    fresh = MetadataFollower(broker.client)
    fresh.subscribe(lambda delta, _: deltas.append(delta))
    await fresh.start(PATIENCE_S)
    assert deltas[0].everything
    assert fresh.image == broker.image
    await fresh.stop()
    await cluster.restart()
    await broker.client.put_key_value(m.PutKeyValue(key="k3", value=b"v"))
    assert broker.image.kv.get("k1") == b"v"
    broker.image.check_invariants()


async def test_a_follower_rejects_metadata_that_went_back(start: Start, tmp_path: Path) -> None:
    """Another controller under the same address and cluster id has fewer records."""
    cluster = await start(cluster_id="same")
    broker = await cluster.broker()
    await topic(broker, "orders")
    client = cluster.client()
    observer = MetadataFollower(client)
    await observer.start(PATIENCE_S)
    applied = observer.offset
    await cluster.server.stop()
    config = msgspec.structs.replace(
        cluster.config, data_dir=tmp_path / "other", listeners=(f"127.0.0.1:{cluster.server.port}",)
    )
    other = ControllerServer(config, MemoryStore())
    await other.start()
    await until(lambda: observer.regression)
    assert "older metadata" in observer.regression
    assert observer.offset == applied
    assert observer.image.topics.by_name("orders") is not None
    assert not observer.failed.done(), "it keeps retrying: the right controller may return"
    await other.stop()
    cluster.server = ControllerServer(
        msgspec.structs.replace(cluster.config, listeners=config.listeners), cluster.store
    )
    await cluster.server.start()
    await until(lambda: not observer.regression)
    await observer.stop()


async def test_a_lost_volume_is_rebuilt_from_the_snapshot_of_the_given_cluster(
    start: Start, tmp_path: Path
) -> None:
    cluster = await start(cluster_id="prod")
    broker = await cluster.broker()
    await topic(broker, "orders")
    await cluster.snapshot()
    await cluster.server.stop()
    rebuilt = ControllerServer(
        msgspec.structs.replace(cluster.config, data_dir=tmp_path / "new"), cluster.store
    )
    await rebuilt.start()
    client = ControllerClient([rebuilt.address])
    follower = MetadataFollower(client)
    await follower.start(PATIENCE_S)
    assert follower.image.topics.by_name("orders") is not None
    await follower.stop()
    await client.close()
    await rebuilt.stop()


async def test_many_clients_at_once_get_different_ids_and_share_journal_writes(
    start: Start,
) -> None:
    cluster = await start()
    one, two = await cluster.broker(), await cluster.broker()
    before = cluster.runtime.counters.batches
    blocks = await asyncio.gather(
        *(
            broker.client.allocate_producer_ids(
                m.AllocateProducerIds(
                    node_id=broker.node.node_id, node_epoch=broker.node.node_epoch
                )
            )
            for broker in (one, two) * 100
        )
    )
    assert len({block.first_producer_id for block in blocks}) == 200
    assert cluster.runtime.counters.batches - before < 200


async def test_a_full_queue_responds_busy_and_the_client_succeeds_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await start(queue_count_max=2)
    broker = await cluster.broker()
    sync = os.fdatasync

    def slow(file: int) -> None:
        time.sleep(0.02)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    puts = [
        broker.client.put_key_value(
            m.PutKeyValue(key=f"k{number}", value=b"v"), timeout_s=PATIENCE_S
        )
        for number in range(50)
    ]
    await asyncio.gather(*puts)
    assert len(broker.image.kv) == 50
    assert cluster.runtime.counters.refused_busy > 0


async def test_a_call_without_a_controller_fails_at_its_deadline(start: Start) -> None:
    cluster = await start()
    client = cluster.client()
    await client.describe()
    await cluster.server.stop()
    with pytest.raises(TimeoutError, match="no response from the controller"):
        await client.put_key_value(m.PutKeyValue(key="k", value=b"v"), timeout_s=0.3)


async def test_oversized_and_malformed_messages_are_rejected(start: Start) -> None:
    cluster = await start(request_bytes_max=1_000)
    client = cluster.client()
    with pytest.raises(RequestRefused) as refused:
        await client.put_key_value(m.PutKeyValue(key="k", value=bytes(2_000)))
    assert refused.value.status is m.Status.INVALID_REQUEST
    channel = Channel(cluster.server.address)
    reply = msgspec.msgpack.decode(
        await channel.unary("PutKeyValue")(
            b"\xc1 rubbish", timeout=PATIENCE_S, metadata=((EPOCH_KEY, "1"),)
        ),
        type=m.Reply[None],
    )
    assert reply.status is m.Status.INVALID_REQUEST
    await channel.close()


async def test_a_broker_that_shuts_down_orderly_needs_no_recovery(start: Start) -> None:
    cluster = await start()
    one, two = await cluster.broker(), await cluster.broker()
    await topic(one, "orders", partitions=4)
    request = m.UnregisterBroker(
        node_id=one.node.node_id, node_epoch=one.node.node_epoch, wal_end=WalSequence(0)
    )
    await one.client.unregister_broker(request)
    await until(lambda: two.image.nodes.get(one.node.node_id) is None)
    assert two.image.topics.led_count(two.node) == 4


async def test_a_new_cluster_cannot_use_the_store_of_another(start: Start, tmp_path: Path) -> None:
    cluster = await start()
    await cluster.snapshot()
    other = ControllerServer(
        msgspec.structs.replace(cluster.config, data_dir=tmp_path / "new"), cluster.store
    )
    with pytest.raises(StoreNotEmpty):
        await other.start()


async def test_a_data_directory_can_be_used_by_one_process_only(start: Start) -> None:
    cluster = await start()
    with pytest.raises(DataDirInUse):
        await ControllerServer(cluster.config, cluster.store).start()


@pytest.mark.parametrize("content", [b"abc", b"\xff\xfe"])
async def test_a_damaged_number_of_the_journal_is_reported(start: Start, content: bytes) -> None:
    cluster = await start()
    await cluster.server.stop()
    (cluster.config.data_dir / "journal_number").write_bytes(content)
    cluster.server = ControllerServer(cluster.config, cluster.store)
    with pytest.raises(JournalStateLost, match="file journal_number contains"):
        await cluster.server.start()


async def test_a_failed_journal_stops_the_controller_without_exposing_uncommitted_state(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await start()
    client = cluster.client()
    follower = MetadataFollower(client)
    await follower.start(PATIENCE_S)
    offset = follower.offset

    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    assert cluster.server.failed is not None
    async with asyncio.timeout(PATIENCE_S):
        while not cluster.server.failed.done():
            with pytest.raises(TimeoutError):
                await client.put_key_value(m.PutKeyValue(key="k", value=b"v"), timeout_s=0.5)
    with pytest.raises(JournalFailed):
        await cluster.server.failed
    assert follower.offset == offset
    assert follower.image.kv.get("k") is None
    await follower.stop()


@pytest.mark.parametrize("is_old", [False, True])
async def test_destroyed_objects_and_leftovers_of_ended_wals_are_deleted(
    start: Start, is_old: bool
) -> None:
    """An old fence is deleted, too, once none of the WAL's slots exists as an object."""
    cluster = await start(read_grace_ms=1, late_put_grace_ms=1, janitor_interval_ms=20)
    if is_old:
        cluster.store._now_ms = lambda: 0
    one, two = await cluster.broker(), await cluster.broker()
    await topic(one, "orders")
    stream = data_stream(one, "orders")
    dead, alive = (one, two) if leader(one, "orders") == one.node else (two, one)
    await dead.metadata.open_streams([stream])
    for sequence in range(4):
        await cluster.store.put(
            wal_key(dead.node, WalSequence(sequence), IN_STORE), b"slot or fence"
        )
    await dead.stop()

    def is_recoverer() -> bool:
        wal = alive.image.nodes.wal(dead.node)
        return wal is not None and wal.recoverer == alive.node

    await until(is_recoverer)
    kept = slot(dead.node, 1, part(stream.stream_id, 0, 7))
    await alive.metadata.commit_recovered(dead.node, [kept], done=True, end=WalSequence(3))
    fence = wal_key(dead.node, WalSequence(3), IN_STORE)

    async def has(*keys: str) -> bool:
        return [info.key async for info in cluster.store.list("wal/")] == list(keys)

    await until(lambda: has(kept.key, fence))
    new = data_stream(alive, "orders")
    await alive.metadata.open_streams([new])
    await alive.metadata.trim_stream(new.stream_id, new.epoch, Offset(7))
    await until(lambda: has(*([] if is_old else [fence])))
    await until(lambda: len(alive.image.objects) == 0)
    await until(lambda: (alive.image.nodes.wal(dead.node) is None) == is_old)


async def test_a_cancellation_is_not_lost_if_the_call_fails_at_the_same_time() -> None:
    """In this case grpc.aio raises the call's error instead of CancelledError, so a stopped
    follower used to reconnect forever.
    """
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    for _ in range(5):
        channel = Channel(address)
        call = channel.follow()
        reading = asyncio.ensure_future(call.read())
        vars(call)["_call"].add_done_callback(lambda _, reading=reading: reading.cancel())
        await asyncio.wait((reading,), timeout=PATIENCE_S)
        assert reading.cancelled()
        await channel.close()


class SlowNetwork:
    """Forward connections to the controller. While it is slow, it forwards nothing from the
    controller, and nothing from new connections.
    """

    def __init__(self) -> None:
        self.target_port = 0
        self.connection_count = 0
        self._fast, self._accepts = asyncio.Event(), asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self.speed_up()
        self._server = StreamServer(self._forward)
        self.address = f"127.0.0.1:{self._server.open()}"

    def close(self) -> None:
        self._server.close()

    def slow_down(self) -> None:
        self._fast.clear()
        self._accepts.clear()

    def speed_up(self, *, accepts: bool = True) -> None:
        """Forward again. accepts: also from new connections."""
        self._fast.set()
        if accepts:
            self._accepts.set()

    def reset(self) -> None:
        """Reset the connections; both ends notice it."""
        for writer in self._writers:
            writer.transport.abort()

    async def _forward(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        await self._accepts.wait()
        self._writers.append(back)
        server, forth = await asyncio.open_connection("127.0.0.1", self.target_port)
        pumps = [
            asyncio.ensure_future(self._pump(client, forth, can_wait=False)),
            asyncio.ensure_future(self._pump(server, back, can_wait=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forth.transport.abort()  # before the await, which a second cancellation ends
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, can_wait: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if can_wait:
                    await self._fast.wait()
                writer.write(data)
                await writer.drain()


@pytest.fixture
async def network() -> AsyncIterator[SlowNetwork]:
    network = SlowNetwork()
    yield network
    network.close()


@pytest.mark.parametrize("silence_s", [0.3, follower_module.SILENCE_S])
async def test_a_broker_whose_controller_is_slow_keeps_its_session(
    start: Start, network: SlowNetwork, silence_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for another controller after a silence that is shorter than the session timeout.
    Neither this nor a failed gRPC connection attempt, which takes 2 s, may start the grace period
    for broken streams.
    """
    monkeypatch.setattr(follower_module, "SILENCE_S", silence_s)
    cluster = await start(session_timeout_ms=3_600_000, advertised_listeners=(network.address,))
    network.target_port = cluster.server.port
    broker = await cluster.broker()
    network.slow_down()
    enough = network.connection_count + 2 * follower_module.SILENT_STREAMS_MAX + 1
    await until(lambda: network.connection_count >= enough)
    assert broker.follower.can_write()
    assert not broker.follower.leads_alone()
    network.speed_up()
    await topic(broker, "orders")
    await until(broker.follower.leads_alone)


async def test_a_broker_detects_the_end_of_a_silent_stream(
    start: Start, network: SlowNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has registered with its node id, and no new connection succeeds."""
    monkeypatch.setattr(follower_module, "SILENCE_S", 0.3)
    cluster = await start(session_timeout_ms=3_600_000, advertised_listeners=(network.address,))
    network.target_port = cluster.server.port
    broker = await cluster.broker()
    network.slow_down()
    before = network.connection_count
    await until(lambda: network.connection_count > before)
    client = ControllerClient([f"127.0.0.1:{cluster.server.port}"])
    await client.register_broker(new_registration(broker.node.node_id))
    await client.close()
    assert broker.follower.can_write()
    network.speed_up(accepts=False)
    await until(lambda: broker.follower.fenced)
    assert broker.follower.replaced
    assert not broker.follower.can_write()


async def test_a_broken_silent_stream_shortens_the_lease(
    start: Start, network: SlowNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has also detected the break, and fences the broker after the grace period."""
    monkeypatch.setattr(follower_module, "SILENCE_S", 0.3)
    cluster = await start(session_timeout_ms=3_600_000, advertised_listeners=(network.address,))
    network.target_port = cluster.server.port
    broker = await cluster.broker()
    network.slow_down()
    before = network.connection_count
    await until(lambda: network.connection_count > before)
    assert broker.follower.can_write()
    network.reset()
    await until(lambda: not broker.follower.can_write())
    assert not broker.follower.fenced


async def test_a_late_stream_does_not_replace_the_session_of_a_newer_one(start: Start) -> None:
    """Its first message arrives after that of the next stream of the same follower."""
    cluster = await start(session_grace_ms=60_000)
    broker = await cluster.broker()
    await broker.follower.stop()
    channels = [Channel(cluster.server.address) for _ in range(2)]
    (late, current) = (channel.follow() for channel in channels)

    async def heartbeat(stream: StreamCall, attempt: int, number: int) -> int:
        """Send a heartbeat, and return the last one that the controller has received by then."""
        request = m.FollowRequest(
            node_id=broker.node.node_id,
            node_epoch=broker.node.node_epoch,
            attempt=attempt,
            heartbeat=number,
        )
        await stream.write(msgspec.msgpack.encode(request))
        while True:
            data = await stream.read()
            assert isinstance(data, bytes)
            received = msgspec.msgpack.decode(data, type=m.MetadataBatch).heard
            if received >= number:
                return received

    first = 1_000  # the broker's follower has used lower numbers
    assert await heartbeat(current, first + 1, 1) == 1
    with pytest.raises(RpcFailed) as refused:
        await heartbeat(late, first, 1)
    assert refused.value.code() is StatusCode.ABORTED
    assert await heartbeat(current, first + 1, 2) == 2
    for channel in channels:
        await channel.close()
