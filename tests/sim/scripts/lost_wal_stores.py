"""Scripts about a WAL store that is lost permanently, and that an operator abandons."""

import asyncio

from penstock.base.ids import NodeId, WalStoreId
from penstock.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import AbandonWalStore
from penstock.controller.disaster_recovery.plan import gaps_of_lost_stores
from penstock.controller.metadata.image import MetadataImage
from penstock.lake.manifest.view import ClusterView
from penstock.protocol import apis
from penstock.protocol.gen import offset_for_leader_epoch
from penstock.stream.ports import IN_STORE
from tests.sim.checkers import Part
from tests.sim.control import SimController
from tests.sim.directed import Held, Script, in_cluster
from tests.sim.directed_clients import Producer
from tests.sim.disaster import recover
from tests.sim.overtaken_logs import offset_of
from tests.sim.scripts.wal import is_acknowledged
from tests.sim.store import Bucket

PART: Part = ("t", 0)
OTHER: Part = ("u", 0)
_STORE = WalStoreId(1)
_TRIES_MAX = 120
"""Seconds until the store can be abandoned."""


def _image(script: Script) -> MetadataImage:
    return script.world.metadata.image


def _is_lost(script: Script) -> bool:
    return _image(script).nodes.is_wal_store_lost(_STORE)


def _is_in(script: Script, node_id: int, store_id: WalStoreId) -> bool:
    wal = _image(script).nodes.wal(script.broker(node_id).me)
    return wal is not None and wal.store_id == store_id and not wal.ended


def _controller(script: Script) -> SimController:
    (controller,) = script.world.controllers.values()
    return controller


async def _abandon(script: Script, *, timeout_s: float = 20.0) -> str:
    """Request once to abandon the WAL store. Return the reason for a refusal, or ""."""
    store, problem = _image(script).wal_store(_STORE), ""
    assert store is not None
    request = AbandonWalStore(store_id=_STORE, uuid=store.uuid)

    async def send() -> None:
        nonlocal problem
        try:
            await script.world.admin.client.abandon_wal_store(request, timeout_s=timeout_s)
        except (ControllerError, TimeoutError) as error:
            problem = str(error) or "no response"

    await script.world.admin.run(send)
    return problem


async def _until_abandoned(script: Script) -> None:
    """Abandon the WAL store as soon as the controller accepts it."""
    for _ in range(_TRIES_MAX):
        if not (problem := await _abandon(script)):
            return
        await asyncio.sleep(1.0)
    raise AssertionError(f"the WAL store cannot be abandoned: {problem}")


async def _check_values(script: Script, part: Part, *values: bytes) -> None:
    found = [record.value for record in await script.read(part)]
    assert found == [*values], f"the log has {found}"


async def _read_end(script: Script) -> int:
    """Read the end of the log from the cluster's own store alone."""
    view = ClusterView(script.world.bucket)
    await view.refresh()
    return {state.topic: state.end_offset for state in await view.partitions(["t"])}["t"]


@in_cluster(wal_stores=1)
async def abandon_a_wal_store(script: Script) -> None:
    """Lose the WAL store together with a broker, and abandon it. The controller restarts before it
    has ended the WAL. Then the store comes back.
    """
    await script.create("t")
    await script.create("u", leaders=(2,))
    await script.write(PART, (b"k", b"1"))
    await script.write(OTHER, (b"k", b"1"))
    await script.upload(1)
    await script.write(PART, (b"k", b"lost"))
    script.world.wal_weather.down = True
    script.kill(1)
    await asyncio.sleep(5.0)
    assert script.leader(PART) is not script.broker(2), "records are given up without a decision"
    problem = await _abandon(script)
    assert "live brokers 2" in problem, f"abandoned below a live broker: {problem}"
    await _until_abandoned(script)
    assert not await _abandon(script), "a second operator is refused"
    await script.restart_controller()
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"1")
    await script.write(PART, (b"k", b"2"))
    await _check_values(script, OTHER, b"1")
    await asyncio.sleep(3.0)
    end = await _read_end(script)
    assert end == 2, f"the log is said to end at {end}"

    bucket = script.world.wal_bucket
    assert bucket is not None
    before = set(bucket.keys)
    script.world.wal_weather.down = False
    broker = script.world.start_broker(1)
    await script.until(lambda: broker.serving)
    await asyncio.sleep(2 * script.world.limits.wal_return_after_s)
    assert _is_in(script, 1, IN_STORE), "an abandoned store is used again"
    assert _is_in(script, 2, IN_STORE), "an abandoned store is used again"
    script.kill(2)
    await script.until_led(PART, 1)
    await _check_values(script, PART, b"1", b"2")
    assert {key for key in bucket.keys if "probe" not in key} <= before, "slots in a lost store"


@in_cluster(wal_stores=1)
async def abandon_a_wal_store_that_works(script: Script) -> None:
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    for node_id in (1, 2):
        client = script.broker(node_id).raw_wal_store
        assert client is not None
        client.mount(Bucket(script.world.now_ms))
    script.kill(1)
    await asyncio.sleep(30.0)
    problem = await _abandon(script)
    assert "is not lost" in problem, f"a store that works is abandoned: {problem}"
    client = script.broker(2).raw_wal_store
    assert client is not None
    assert script.world.wal_bucket is not None
    client.mount(script.world.wal_bucket)
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"1")


@in_cluster(wal_stores=1, move_timeout_ms=1_000)
async def abandon_a_wal_store_with_a_late_writer(script: Script) -> None:
    """Lose the WAL store for all brokers but one, fence that broker while it still has a lease and
    cannot reach the controller, and abandon the store.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    old = script.broker(1)
    assert old.raw_wal_store is not None
    old.raw_wal_store.keep_weather()
    script.world.wal_weather.down = True
    await asyncio.sleep(30.0)
    assert _is_in(script, 2, IN_STORE)
    assert _is_in(script, 1, _STORE)
    with script.isolated(1):
        script.world.admin.move(PART, NodeId(2))
        await script.until(lambda: not _image(script).nodes.is_alive(old.me))
        abandoning = asyncio.ensure_future(_until_abandoned(script))
        await asyncio.sleep(2.5)
        is_abandoned = _is_lost(script)
        writing = script.producing(old, PART, script.batch((b"k", b"late")))
        await asyncio.wait([writing], timeout=1.0)
        is_acked = writing.done() and is_acknowledged(writing.result())
        assert not (is_acked and is_abandoned), "acknowledged after the store was abandoned"
        assert is_acked, "the broker has no lease"
        await abandoning
    await script.until_led(PART, 2)
    await script.write(PART, (b"k", b"2"))


@in_cluster(wal_stores=1)
async def abandon_a_wal_store_while_a_broker_returns(script: Script) -> None:
    """Abandon a WAL store that works again for brokers, but not for the controller, after a broker
    has written the marker of its WAL and before its WAL has moved.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    script.world.wal_weather.down = True
    await asyncio.sleep(30.0)
    for controller in script.world.controllers.values():
        assert controller.wal_store is not None
        controller.wal_store.mount(Bucket(script.world.now_ms))
    held = [script.hold_in_wal_store(node_id) for node_id in (1, 2)]
    script.world.wal_weather.down = False
    for _ in range(_TRIES_MAX):
        if held[0].count and held[1].count:
            break
        await asyncio.sleep(1.0)
    await _until_abandoned(script)
    for item in held:
        item.release()
    await script.write(PART, (b"k", b"2"))
    await asyncio.sleep(5.0)
    assert _is_in(script, 1, IN_STORE), "the WAL is in an abandoned store"
    await script.write(PART, (b"k", b"3"))
    await _check_values(script, PART, b"1", b"2", b"3")


async def _recover_in_place(script: Script, **configs: str) -> None:
    """Kill a leader, and let another broker commit its slots in place."""
    await script.create("t", (1,), **configs)
    await script.write(PART, (b"k", b"1"))
    await script.upload(1)
    await script.write(PART, (b"k", b"lost"))
    script.kill(1)
    await script.until_led(PART, 2)


@in_cluster(wal_stores=1)
async def abandon_a_wal_store_with_ranges(script: Script) -> None:
    """Abandon a WAL store that the log of a live leader references."""
    await _recover_in_place(script)
    await script.write(PART, (b"k", b"2"))
    await script.upload(2)
    keys = {state.key for state in _image(script).objects.placed()}
    assert keys, "nothing was committed in place"
    script.world.wal_weather.down = True
    await _until_abandoned(script)
    await script.until(lambda: not any(state.refs for state in _image(script).objects.placed()))
    script.world.start_broker(1)
    script.kill(2)
    await script.until(lambda: script.leader(PART) is script.broker(1))
    await _check_values(script, PART, b"1", b"2")
    await script.write(PART, (b"k", b"3"))
    await asyncio.sleep(3.0)
    end = await _read_end(script)
    assert end == 4, f"the log is said to end at {end}"


@in_cluster(wal_stores=1)
async def abandon_a_wal_store_with_the_end_of_a_transaction(script: Script) -> None:
    """Abandon a WAL store that contains the end of an aborted transaction whose records are in the
    cluster's own store.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"aborted"))
    await script.upload(1)
    await producer.end(commit=False)
    await script.write(PART, (b"k", b"lost"))
    script.kill(1)
    await script.until_led(PART, 2)
    await script.write(PART, (b"k", b"2"))
    await script.upload(2)
    script.world.wal_weather.down = True
    await _until_abandoned(script)
    await script.until(lambda: not any(state.refs for state in _image(script).objects.placed()))
    for _ in range(2):
        data = _image(script).streams.known(script.topic("t").partitions[0].data_stream_id)
        found = await script.read(PART, committed=True, start_offset=data.start_offset)
        assert [record.value for record in found] == [b"2"], f"the log has {found}"
        await script.restart(2)
        await script.until_led(PART, 2)


@in_cluster(wal_stores=1)
async def abandon_a_wal_store_without_a_backup(script: Script) -> None:
    """Abandon a WAL store while backups cannot be written."""
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    await script.upload(1)
    script.world.wal_weather.down = True
    script.kill(1)
    await asyncio.sleep(30.0)
    held = Held(None)
    _controller(script).store.gates["put_if_absent"] = held
    problem = await _abandon(script)
    assert held.count
    assert problem, "the loss is confirmed without a backup"
    assert _is_lost(script)
    await asyncio.sleep(5.0)
    assert script.leader(PART) is not script.broker(2), "a WAL ended that a backup would read"
    held.release()
    await _until_abandoned(script)
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"1")


async def _recover_without_the_wal_store(script: Script) -> None:
    """Lose the disk of the controller, all brokers and the WAL store, and recover."""
    world, old = script.world, _controller(script)
    world.wal_weather.down = True
    for node_id in (1, 2):
        script.kill(node_id)
    world.has_disks = False
    world.stop_controller(old)
    recover(world, abandon_wal_store=True)
    await script.until(lambda: world.has_disks and world.active_controller() not in {None, old})
    broker = world.start_broker(1)
    await script.until(lambda: broker.serving)
    await script.until_led(PART, 1)


@in_cluster(wal_stores=1)
async def recover_without_the_wal_store(script: Script) -> None:
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    await script.upload(1)
    await script.write(PART, (b"k", b"lost"))
    await asyncio.sleep(2.0)
    await _recover_without_the_wal_store(script)
    await _check_values(script, PART, b"1")
    script.world.wal_weather.down = False
    await asyncio.sleep(2 * script.world.limits.wal_return_after_s)
    await script.write(PART, (b"k", b"2"))
    assert _is_in(script, 1, IN_STORE), "an abandoned store is used again"


@in_cluster(wal_stores=1)
async def recover_without_ranges_in_the_wal_store(script: Script) -> None:
    await _recover_in_place(script)
    await script.write(PART, (b"k", b"2"))
    await script.upload(2)
    await asyncio.sleep(2.0)
    await _recover_without_the_wal_store(script)
    await script.until(lambda: not any(state.refs for state in _image(script).objects.placed()))
    await _check_values(script, PART, b"1", b"2")
    await script.write(PART, (b"k", b"3"))


async def _lose_ranges(script: Script) -> None:
    """Lose the WAL store, and abandon it as soon as broker 2 has left it. Return when nothing
    references it.
    """
    script.world.wal_weather.down = True
    await script.until(lambda: _is_in(script, 2, IN_STORE))
    await _until_abandoned(script)
    await script.until(lambda: not any(state.refs for state in _image(script).objects.placed()))


async def _restart_and_lead(script: Script, *parts: Part) -> None:
    """Restart broker 1, and make it the leader."""
    broker = script.world.start_broker(1)
    await script.until(lambda: broker.serving)
    script.kill(2)
    for part in parts:
        await script.until_led(part, 1)


async def _end_of_epoch(script: Script, epoch: int) -> tuple[int, int]:
    """Return the leader epoch and the offset that a consumer at this epoch gets."""
    requested = offset_for_leader_epoch.OffsetForLeaderPartition(PART[1], -1, epoch)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(PART[0], [requested])
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, [topic])
    found = await script.repeat(
        lambda: script.leader(PART),
        (apis.OFFSET_FOR_LEADER_EPOCH, 4, request),
        lambda response: response.topics[0].partitions[0],
    )
    return found.leader_epoch, found.end_offset


@in_cluster(wal_stores=1)
async def lose_retained_records(script: Script) -> None:
    """The last references to the lost store are those of retained deleted records. Nothing else
    happens in the cluster afterwards.
    """
    await _recover_in_place(script, penstock_delete_grace_ms="3600000")
    await script.delete_records(PART, 2)
    stream = _image(script).streams.known(script.topic("t").partitions[0].data_stream_id)
    assert stream.kept_entries, "nothing is retained"
    assert not stream.entries
    script.world.wal_weather.down = True
    await asyncio.sleep(20.0)
    _, removed = gaps_of_lost_stores(_image(script), {_STORE})
    assert [(gap.start_offset, gap.end_offset) for gap in removed] == [(0, 2)], (
        f"listed are {removed}"
    )
    await _lose_ranges(script)
    await asyncio.sleep(10.0)
    assert await _read_end(script) == 2


@in_cluster(wal_stores=1)
async def lose_the_newest_timestamp(script: Script) -> None:
    """ListOffsets finds the newest remaining record, although a newer one was in a lost range."""
    await _recover_in_place(script)
    await _lose_ranges(script)
    found = await offset_of(script, PART, -3)
    assert found == 0, f"the newest record is at offset {found}"


@in_cluster(wal_stores=1)
async def lose_the_whole_log(script: Script) -> None:
    """A consumer at a lost epoch at the beginning of the log finds the end of that epoch."""
    await script.create("t")
    await script.write(PART, (b"k", b"lost"))
    old = script.topic("t").partitions[0].leader_epoch
    await script.move(PART, 2)
    script.kill(1)
    await _lose_ranges(script)
    await _restart_and_lead(script, PART)
    await script.write(PART, (b"k", b"2"), (b"k", b"3"))
    found = await _end_of_epoch(script, old)
    assert found == (old, 1), f"the end of the lost epoch is {found}"


@in_cluster(wal_stores=1)
async def reuse_offsets(script: Script) -> None:
    """Consumers detect that the offsets of lost records are reused."""
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    await script.upload(1)
    await script.write(PART, (b"k", b"lost"))
    old = script.topic("t").partitions[0].leader_epoch
    script.kill(1)
    await _lose_ranges(script)
    await script.until_led(PART, 2)
    await script.write(PART, (b"k", b"2"), (b"k", b"3"))
    found = await _end_of_epoch(script, old)
    assert found == (old, 1), f"the end of the lost epoch is {found}"


@in_cluster(wal_stores=1)
async def lose_ranges_of_a_fork(script: Script) -> None:
    """A topic and its fork reference the same lost range."""
    await _recover_in_place(script)
    fork: Part = ("f", 0)
    await script.fork("f", "t", by=2)
    await script.until(lambda: script.leader(fork) is script.broker(2))
    await _lose_ranges(script)
    await _restart_and_lead(script, PART, fork)
    for part in (PART, fork):
        await _check_values(script, part, b"1")
        await script.write(part, (b"x", b"2"))


@in_cluster(wal_stores=1)
async def lose_ranges_of_a_deleted_topic(script: Script) -> None:
    """A deleted topic that is restored afterwards references a lost range that contains a
    transaction.
    """
    await script.create(TRANSACTIONS_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t", penstock_delete_grace_ms="3600000")
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"t", b"aborted"))
    await script.upload(1)
    await producer.end(commit=False)
    await asyncio.sleep(1.0)
    await script.write(PART, (b"k", b"lost"))
    script.kill(1)
    await script.until_led(PART, 2)
    await script.write(PART, (b"k", b"kept"))
    await script.upload(2)
    broker = script.world.start_broker(1)
    await script.until(lambda: broker.serving)
    topic_id = script.topic("t").topic_id
    await script.delete("t")
    await asyncio.sleep(2.0)
    script.world.wal_weather.down = True
    await script.until(lambda: _is_in(script, 1, IN_STORE))
    await _lose_ranges(script)
    await script.undelete("t", topic_id)
    await script.until(lambda: script.leader(PART))
    await script.write(PART, (b"y", b"2"))
    start = await offset_of(script, PART, -2)
    found = [record.value for record in await script.read(PART, committed=True, start_offset=start)]
    assert found == [b"kept", b"2"], f"the log has {found}"


@in_cluster(wal_stores=1)
async def lose_a_part_of_a_transaction(script: Script) -> None:
    """A transaction that is open while the store is abandoned is aborted afterwards."""
    await script.create(TRANSACTIONS_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t")
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"a", b"aborted"))
    await script.upload(1)
    await producer.write(PART, (b"b", b"lost"))
    script.kill(1)
    await script.until_led(PART, 2)
    await _lose_ranges(script)
    await script.upload(2)
    await _restart_and_lead(script, PART, (TRANSACTIONS_TOPIC, 0))
    await producer.end(commit=False)
    await script.write(PART, (b"d", b"kept"))
    await asyncio.sleep(1.0)
    found = await script.values(PART, committed=True)
    assert found == {b"d": b"kept"}, f"the log has {found}"
