"""Scripts about a WAL store that an operator drains: WALs move to the cluster's own store."""

import asyncio
from collections.abc import Mapping

from penstock.base.ids import WalStoreId
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import DrainWalStore
from penstock.controller.managers.wal_stores import placed_in
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import DrainState
from penstock.lake.manifest.view import ClusterView
from penstock.stream.ports import IN_STORE, CommitObjects
from tests.sim.checkers import Part
from tests.sim.directed import JANITOR_S, Held, Script, in_cluster
from tests.sim.disaster import recover
from tests.sim.store import Bucket

PART: Part = ("t", 0)
OTHER: Part = ("u", 0)
_STORE = WalStoreId(1)
_TRIES_MAX = 240
"""Seconds until a WAL store is drained, or a WAL moves."""


def _image(script: Script) -> MetadataImage:
    return script.world.metadata.image


def _state(script: Script) -> DrainState:
    return _image(script).nodes.drain_of(_STORE)


def _is_in(script: Script, node_id: int, store_id: WalStoreId) -> bool:
    wal = _image(script).nodes.wal(script.broker(node_id).me)
    return wal is not None and wal.store_id == store_id and not wal.ended


async def _until_in(script: Script, store_id: WalStoreId, *node_ids: int) -> None:
    for _ in range(_TRIES_MAX):
        if all(_is_in(script, node_id, store_id) for node_id in node_ids):
            return
        await asyncio.sleep(1.0)
    raise AssertionError(f"the WALs of brokers {node_ids} are not in store {store_id}")


async def _drain(script: Script, *, is_undone: bool = False) -> int | None:
    """Request the drain once. Return what is left, or None without a response."""
    store, left = _image(script).wal_store(_STORE), None
    assert store is not None
    request = DrainWalStore(store_id=_STORE, uuid=store.uuid, is_undone=is_undone)

    async def send() -> None:
        nonlocal left
        try:
            left = (await script.world.admin.client.drain_wal_store(request)).remaining
        except (ControllerError, TimeoutError):
            left = None

    await script.world.admin.run(send)
    return left


async def _until_drained(script: Script) -> None:
    for _ in range(_TRIES_MAX):
        if await _drain(script) == 0:
            assert _state(script) == DrainState.ENDED
            return
        await asyncio.sleep(1.0)
    left = [
        f"{state.key} with {state.refs} references, {state.phase.name}"
        for state in placed_in(_image(script), _STORE)
    ]
    raise AssertionError(f"the WAL store is not drained, it has {left}")


async def _check_values(script: Script, part: Part, *values: bytes) -> None:
    found = [record.value for record in await script.read(part)]
    assert found == [*values], f"the log has {found}"


async def _check_without_the_wal_store(script: Script, counts: Mapping[str, int]) -> None:
    """Lose the WAL store, and check that no reader of the bucket requires it."""
    script.world.wal_weather.down = True
    await asyncio.sleep(3.0)
    view = ClusterView(script.world.bucket)
    await view.refresh()
    ends = {state.topic: state.end_offset for state in await view.partitions([*counts])}
    assert ends == counts, f"the logs are said to end at {ends}"


@in_cluster(wal_stores=1, compacting=1)
async def drain_a_wal_store(script: Script) -> None:
    """Drain a WAL store that a log references, write meanwhile, and lose the store afterwards. The
    controller restarts in between.
    """
    await script.create("t")
    await script.create("u", leaders=(2,))
    await script.write(PART, (b"k", b"0"))
    script.kill(1)
    await script.until_led(PART, 2)
    placed = [state for state in _image(script).objects.placed() if state.refs]
    assert placed, "nothing was committed in place"
    broker = script.world.start_broker(1)
    await script.until(lambda: broker.serving)
    await _until_in(script, _STORE, 1, 2)
    assert await _drain(script)
    values = [b"0"]
    while not (_is_in(script, 1, IN_STORE) and _is_in(script, 2, IN_STORE)):
        values.append(b"%d" % len(values))
        await script.write(PART, (b"k", values[-1]))
        await asyncio.sleep(0.2)
    await script.restart_controller()
    assert _state(script) == DrainState.DRAINING, "the controller has forgotten the drain"
    await _until_drained(script)
    await script.restart_controller()
    assert await _drain(script) == 0, "the controller has forgotten the end"
    await script.write(OTHER, (b"k", b"v"))
    await _check_without_the_wal_store(script, {"t": len(values)})
    await script.restart(1)
    script.kill(2)
    await script.until_led(PART, 1)
    await _check_values(script, PART, *values)
    await asyncio.sleep(JANITOR_S)
    await script.write(PART, (b"k", b"last"))
    await _check_values(script, PART, *values, b"last")


@in_cluster(wal_stores=1, compacting=1)
async def drain_a_wal_store_with_a_dead_wal(script: Script) -> None:
    """Drain a WAL store that contains the WAL of a dead broker, which the other broker cannot
    recover yet.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    client, bucket = script.broker(2).raw_wal_store, script.world.wal_bucket
    assert client is not None
    assert bucket is not None
    client.mount(Bucket(script.world.now_ms))
    script.kill(1)
    await _until_in(script, IN_STORE, 2)
    for _ in range(20):
        assert await _drain(script), "a WAL store ends although a dead WAL is in it"
        await asyncio.sleep(1.0)
    assert script.leader(PART) is not script.broker(2), "a partition is handed over without its WAL"
    client.mount(bucket)
    await script.until_led(PART, 2)
    await _until_drained(script)
    await _check_without_the_wal_store(script, {"t": 1})
    await script.restart(2)
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"0")


def _lose_the_response_of_a_move(script: Script, node_id: int) -> Held:
    """Lose the response of the controller to the commit of the next move, once it is released."""
    held, metadata = Held(1), script.broker(node_id).storage._metadata
    real = metadata.commit

    async def commit(request: CommitObjects) -> None:
        await real(request)
        if request.wal_move is not None and not held.count:
            await held.pass_through()
            raise TimeoutError("the response is lost")

    vars(metadata)["commit"] = commit
    return held


@in_cluster(wal_stores=1, compacting=1)
async def drain_a_wal_store_while_a_broker_returns(script: Script) -> None:
    """Drain a WAL store after a broker has returned to it, and before that broker has received the
    controller's response.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    script.world.wal_weather.down = True
    await _until_in(script, IN_STORE, 1, 2)
    held = script.hold_in_wal_store(1)
    script.world.wal_weather.down = False
    await _until_in(script, _STORE, 2)
    assert held.count, "the WAL does not return"
    lost = _lose_the_response_of_a_move(script, 1)
    held.release()
    await script.until(lambda: _is_in(script, 1, _STORE))
    assert await _drain(script)
    lost.release()
    await script.write(PART, (b"k", b"1"))
    script.kill(1)
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"0", b"1")
    await _until_drained(script)
    await _check_without_the_wal_store(script, {"t": 2})


@in_cluster(wal_stores=1, compacting=1)
async def kill_a_broker_that_leaves_a_drained_wal_store(script: Script) -> None:
    """Kill a broker that leaves, together with the controller, before its WAL has moved."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    held = script.hold(1, "put data")
    assert await _drain(script)
    await script.until(lambda: held.count)
    assert _is_in(script, 1, _STORE), "the WAL has moved without its records"
    assert _is_in(script, 2, _STORE), "two WALs move at once"
    await script.restart_controller()
    script.kill(1)
    held.release()
    await script.until_led(PART, 2)
    broker = script.world.start_broker(1)
    await script.until(lambda: broker.serving)
    assert _state(script) == DrainState.DRAINING
    assert _is_in(script, 1, IN_STORE), "a WAL begins in a store that is being drained"
    await _until_drained(script)
    await _check_values(script, PART, b"0")


@in_cluster(wal_stores=1, compacting=1)
async def start_with_another_store_during_a_drain(script: Script) -> None:
    """Start a broker that is configured with another WAL store while one is being drained, and read
    a range from the drained one there.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    assert await _drain(script)
    script.kill(1)
    broker = script.world.start_broker(1)
    assert broker.raw_wal_store is not None
    broker.raw_wal_store.mount(Bucket(script.world.now_ms))
    await asyncio.sleep(5.0)
    assert not broker.serving, "a broker serves with another WAL store"
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"0")


@in_cluster(wal_stores=1, compacting=1)
async def undo_a_drain(script: Script) -> None:
    """Use a WAL store again that is being drained, and lose the other one."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    assert await _drain(script)
    await _until_in(script, IN_STORE, 1, 2)
    assert await _drain(script, is_undone=True) == 0
    await _until_in(script, _STORE, 1, 2)
    await script.write(PART, (b"k", b"1"))
    script.kill(1)
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"0", b"1")


@in_cluster(wal_stores=1, compacting=1)
async def lose_a_wal_store_during_a_drain(script: Script) -> None:
    """Lose a WAL store that is being drained while it contains WALs: they leave as in an outage."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    script.world.wal_weather.down = True
    assert await _drain(script)
    await script.write(PART, (b"k", b"1"))
    await _until_in(script, IN_STORE, 1, 2)
    script.kill(1)
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"0", b"1")
    script.world.wal_weather.down = False
    await _until_drained(script)


@in_cluster(wal_stores=1, compacting=1)
async def end_while_returning(script: Script) -> None:
    """Drain and end a WAL store before two brokers have committed their return to it. They continue
    in the cluster's own store.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    script.world.wal_weather.down = True
    await _until_in(script, IN_STORE, 1, 2)
    held = [script.hold_in_wal_store(node_id) for node_id in (1, 2)]
    script.world.wal_weather.down = False
    for _ in range(_TRIES_MAX):
        if all(put.count for put in held):
            break
        await asyncio.sleep(1.0)
    assert all(put.count for put in held), "the WALs do not return"
    await _until_drained(script)
    for put in held:
        put.release()
    await script.write(PART, (b"k", b"1"))
    await asyncio.sleep(5.0)
    assert _is_in(script, 1, IN_STORE)
    await script.write(PART, (b"k", b"2"))
    script.kill(1)
    await script.until_led(PART, 2)
    await _check_values(script, PART, b"0", b"1", b"2")


@in_cluster(wal_stores=1, compacting=1)
async def end_without_backup(script: Script) -> None:
    """End a WAL store while the metadata backup makes no progress: a recovery from that backup
    would require the store.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    assert await _drain(script)
    await _until_in(script, IN_STORE, 1, 2)
    await script.until(lambda: not placed_in(_image(script), _STORE))
    (controller,) = script.world.controllers.values()
    held = Held(None)
    controller.store.gates["put_if_absent"] = held
    left = await _drain(script)
    assert _state(script) == DrainState.ENDED
    assert left is None, "the end is reported before the backup contains it"
    held.release()
    await _until_drained(script)


@in_cluster(wal_stores=1, compacting=1)
async def recover_during_a_drain(script: Script) -> None:
    """Lose the disk of the controller and all brokers when one WAL has left the WAL store and the
    other has not, with records in both WALs that are not uploaded.
    """
    world = script.world
    await script.create("t")
    await script.create("u", leaders=(2,))
    await script.write(PART, (b"k", b"0"))
    await script.write(OTHER, (b"k", b"0"))
    held = script.hold(2, "put data")
    assert await _drain(script)
    await _until_in(script, IN_STORE, 1)
    await script.until(lambda: held.count)
    await script.write(PART, (b"k", b"1"))
    assert _is_in(script, 2, _STORE), "the other WAL has moved"
    for node_id in (1, 2):
        script.kill(node_id)
    (old,) = world.controllers.values()
    world.has_disks = False
    world.stop_controller(old)
    recover(world)
    await script.until(lambda: world.has_disks and world.active_controller() not in {None, old})
    brokers = [world.start_broker(node_id) for node_id in (1, 2)]
    await script.until(lambda: all(broker.serving for broker in brokers))
    assert _state(script) == DrainState.DRAINING, "the recovery has forgotten the drain"
    await _until_in(script, IN_STORE, 1, 2)
    await _check_values(script, PART, b"0", b"1")
    await _check_values(script, OTHER, b"0")
    await _until_drained(script)
    await _check_without_the_wal_store(script, {"t": 2, "u": 1})
