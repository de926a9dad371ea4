"""Scripts about a cluster whose WALs are in a separate store, which fails on its own, or is
replaced by another one.
"""

import asyncio
from typing import Any, Final
from unittest.mock import patch

from penstock.base.ids import WalStoreId
from penstock.lake.manifest.errors import EndInDoubt, WalStoreRequired
from penstock.lake.manifest.view import ClusterView
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.errors import WalStoreWrong
from penstock.stream.format.keys import wal_prefix
from penstock.stream.ports import IN_STORE
from tests.sim.checkers import Part
from tests.sim.directed import CONTROLLER, JANITOR_S, Held, Script, in_cluster
from tests.sim.store import Bucket

PART: Part = ("t", 0)
_COUNT: Final = 5
_VALUES: Final = [b"%d" % number for number in range(_COUNT)]
_STORE: Final = WalStoreId(1)
_MOVE_MAX_S: Final = 120
"""Maximum time until a WAL moves."""


async def _write(script: Script) -> None:
    await script.create("t")
    for value in _VALUES:
        await script.write(PART, (b"k", value))
    state = script.world.metadata.image.nodes.wal(script.broker(1).me)
    assert state is not None
    assert state.store_id == _STORE, "the WAL is not in the WAL store"
    assert not [key for key in script.world.bucket.keys if key.startswith("wal")]


async def _check_values(script: Script) -> None:
    found = [record.value for record in await script.read(PART)]
    assert found == _VALUES, f"the log has {found}"


def _wal_bucket(script: Script) -> Bucket:
    bucket = script.world.wal_bucket
    assert bucket is not None
    return bucket


def _empty_bucket(script: Script) -> Bucket:
    """Return a bucket that looks like an unmounted path or another volume."""
    return Bucket(script.world.now_ms)


def _waits_for_recovery(script: Script) -> bool:
    return script.leader(PART) is not script.broker(2)


@in_cluster(wal_stores=1)
async def fail_over_in_a_wal_store(script: Script) -> None:
    """Kill a leader, and read slots that were committed in place after its WAL was deleted."""
    await _write(script)
    script.kill(1)
    await script.until_led(PART, 2)
    await _check_values(script)
    script.world.start_broker(1)
    await asyncio.sleep(JANITOR_S)
    await script.restart(2)
    await _check_values(script)


@in_cluster(wal_stores=1)
async def fail_over_with_an_empty_store_mounted(script: Script) -> None:
    """Kill a leader while the recovering broker has an empty store mounted in place of the WAL
    store.
    """
    await _write(script)
    client = script.broker(2).raw_wal_store
    assert client is not None
    client.mount(_empty_bucket(script))
    script.kill(1)
    await asyncio.sleep(20.0)
    assert _waits_for_recovery(script), "a partition is handed over without its WAL"
    client.mount(_wal_bucket(script))
    await script.until_led(PART, 2)
    await _check_values(script)


@in_cluster(wal_stores=1, brokers=3)
async def fail_over_while_a_broker_does_not_reach_the_store(script: Script) -> None:
    """Kill a leader while one of two other brokers has an empty store mounted in place of the WAL
    store. The other one recovers the WAL.
    """
    await _write(script)
    client, dead = script.broker(2).raw_wal_store, script.broker(1).me
    assert client is not None
    client.mount(_empty_bucket(script))
    await _until_in(script, 2, IN_STORE)
    script.kill(1)
    await asyncio.sleep(20.0)
    wal = script.world.metadata.image.nodes.wal(dead)
    assert wal is None or wal.ended, "no broker that reaches the WAL store recovers the WAL"
    client.mount(_wal_bucket(script))
    await script.until_led(PART, 2)
    await _check_values(script)


@in_cluster(wal_stores=1)
async def fence_while_the_store_is_replaced(script: Script) -> None:
    """Mount an empty store between the reads of a recovery and its fence."""
    await _write(script)
    client = script.broker(2).raw_wal_store
    assert client is not None
    held = script.hold_in_wal_store(2, first=1)
    script.kill(1)
    await script.until(lambda: held.count)
    client.mount(_empty_bucket(script))
    held.release()
    await asyncio.sleep(20.0)
    assert _waits_for_recovery(script), "a fence in another store ended the WAL"
    client.mount(_wal_bucket(script))
    await script.until_led(PART, 2)
    await _check_values(script)


@in_cluster(wal_stores=1)
async def lose_a_whole_wal(script: Script) -> None:
    """Kill a leader whose whole WAL, including the marker, the store has lost; then restore it."""
    await _write(script)
    bucket = _wal_bucket(script)
    prefix = wal_prefix(script.broker(1).me, _STORE)
    keys = [script.world.stored.find(key)[1] for key in script.world.stored.keys_below(prefix)]
    assert len(keys) > _COUNT, f"the WAL has {keys}"
    for key in keys:
        bucket.strike(key, None)
    script.kill(1)
    await asyncio.sleep(20.0)
    assert _waits_for_recovery(script), "a WAL that vanished is mistaken for an empty one"
    for key in keys:
        bucket.restore(key)
    await script.until_led(PART, 2)
    await _check_values(script)


@in_cluster(wal_stores=1)
async def kill_a_broker_before_its_first_slot(script: Script) -> None:
    """Kill a broker that leads and has written nothing: its WAL is empty, and did not vanish."""
    await script.create("t")
    await script.until_led(PART, 1)
    script.kill(1)
    await script.until_led(PART, 2)


@in_cluster(wal_stores=1)
async def start_with_another_store(script: Script) -> None:
    """Start a broker that is configured with another WAL store."""
    await _write(script)
    script.kill(1)
    broker = script.world.start_broker(1)
    assert broker.raw_wal_store is not None
    broker.raw_wal_store.mount(_empty_bucket(script))
    await asyncio.sleep(5.0)
    assert not broker.serving, "a broker serves with another WAL store"
    await script.until_led(PART, 2)
    await _check_values(script)


@in_cluster(wal_stores=1)
async def start_with_another_store_that_is_down(script: Script) -> None:
    """Start a broker that is configured with another WAL store, which does not respond until the
    broker serves. The broker never writes there, and logs the reason.
    """
    await _write(script)
    script.kill(1)
    await script.until_led(PART, 2)
    script.world.wal_weather.down = True
    broker = script.world.start_broker(1)
    client, bucket = broker.raw_wal_store, _empty_bucket(script)
    assert client is not None
    client.mount(bucket)
    await script.until(lambda: broker.serving)
    script.world.wal_weather.down = False
    logged = script.world.note
    events = list[Any]()

    def keep(event: dict[str, Any]) -> None:
        events.append(event["event"])
        logged(event)

    with patch.object(script.world, "note", keep):
        await asyncio.sleep(2 * script.world.limits.wal_return_after_s)
    assert _is_in(script, 1, IN_STORE)
    assert not bucket.keys, f"{bucket.keys} are written to another store"
    assert events.count("wal_store_wrong") == 1, f"the broker has logged {events}"
    await _check_values(script)


@in_cluster(wal_stores=1)
async def lose_the_wal_store_for_a_while(script: Script) -> None:
    """Write while the WAL store, and then the other store, is down."""
    await _write(script)
    weather = script.world.wal_weather
    weather.down = True
    writing = script.producing(script.broker(1), PART, script.batch((b"k", b"%d" % _COUNT)))
    await asyncio.sleep(2.0)
    assert not writing.done(), "a record is acknowledged while the WAL store is down"
    weather.down = False
    assert (await writing).error_code == ErrorCode.NONE, "the record is refused"
    script.world.weather.down = True
    await script.write(PART, (b"k", b"%d" % (_COUNT + 1)))
    script.world.weather.down = False
    found = [record.value for record in await script.read(PART)]
    assert len(found) == _COUNT + 2, f"the log has {found}"


def _is_in(script: Script, node_id: int, store: WalStoreId) -> bool:
    wal = script.world.metadata.image.nodes.wal(script.broker(node_id).me)
    return wal is not None and wal.store_id == store and not wal.ended


async def _until_in(script: Script, node_id: int, store: WalStoreId) -> None:
    """Wait until the WAL of a broker is in this store, and everything is acknowledged."""
    for _ in range(_MOVE_MAX_S):
        if _is_in(script, node_id, store):
            break
        await asyncio.sleep(1.0)
    assert _is_in(script, node_id, store), "the WAL stays in the wrong store"
    await script.broker(node_id).storage.flush()


@in_cluster(wal_stores=1)
async def lose_the_wal_store_for_long(script: Script) -> None:
    """Write while the WAL store is down for longer than brokers wait for it, then after it is back,
    and kill leaders while their WALs are in either store.
    """
    await _write(script)
    values = [*_VALUES]

    async def write() -> None:
        values.append(b"%d" % len(values))
        await script.write(PART, (b"k", values[-1]))

    script.world.wal_weather.down = True
    await write()
    assert _is_in(script, 1, IN_STORE), "a record is acknowledged without a WAL"
    for _ in range(3):
        await write()
    script.kill(1)
    await script.until_led(PART, 2)
    await write()
    script.world.wal_weather.down = False
    await asyncio.sleep(10.0)
    assert _is_in(script, 2, IN_STORE), "the WAL returns to a store that has just failed"
    await _until_in(script, 2, _STORE)
    await write()
    await write()
    script.world.start_broker(1)
    await script.until(lambda: script.broker(1).serving)
    script.kill(2)
    await script.until_led(PART, 1)
    found = [record.value for record in await script.read(PART)]
    assert found == values, f"the log has {found}"


@in_cluster(wal_stores=1)
async def lose_the_response_of_a_slot_and_the_store(script: Script) -> None:
    """Lose the WAL store after it has stored a slot whose writer got no response, and return to it
    when it contains the old slots.
    """
    await _write(script)
    client = script.broker(1).raw_wal_store
    assert client is not None
    held = Held(None)
    client.response_gates["put_if_absent"] = held
    writing = script.producing(script.broker(1), PART, script.batch((b"k", b"%d" % _COUNT)))
    await script.until(lambda: held.count)
    script.world.wal_weather.down = True
    assert (await writing).error_code == ErrorCode.NONE, "the record is refused"
    await script.write(PART, (b"k", b"%d" % (_COUNT + 1)))
    script.world.wal_weather.down = False
    del client.response_gates["put_if_absent"]
    held.release()
    await _until_in(script, 1, _STORE)
    await script.write(PART, (b"k", b"%d" % (_COUNT + 2)))
    script.kill(1)
    await script.until_led(PART, 2)
    found = [record.value for record in await script.read(PART)]
    assert found == [b"%d" % number for number in range(_COUNT + 3)], f"the log has {found}"


async def _write_while_leaving(script: Script) -> "asyncio.Task[Any]":
    """Write a record, lose the WAL store, and cut broker 1 off from the controller after it has
    uploaded the record and before it can commit the upload.
    """
    before = _data_count(script)
    script.world.wal_weather.down = True
    writing = script.producing(script.broker(1), PART, script.batch((b"k", b"%d" % _COUNT)))
    held = script.hold(1, "put data")
    await script.until(lambda: held.count)
    script.world.network.links.cut(script.broker(1).process.link, CONTROLLER)
    held.release()
    await script.until(lambda: _data_count(script) > before)
    assert _is_in(script, 1, _STORE), "the WAL has moved without the controller"
    assert not writing.done(), "a record is acknowledged without the controller"
    return writing


def _data_count(script: Script) -> int:
    return len([key for key in script.world.bucket.keys if key.startswith("data/")])


@in_cluster(wal_stores=1)
async def kill_a_broker_that_leaves_the_wal_store(script: Script) -> None:
    """Kill a broker after it has uploaded its tail and before its WAL has moved."""
    await _write(script)
    writing = await _write_while_leaving(script)
    script.kill(1)
    await asyncio.sleep(20.0)
    assert _waits_for_recovery(script), "a partition is handed over without its WAL"
    script.world.wal_weather.down = False
    await script.until_led(PART, 2)
    writing.cancel()
    await _check_values(script)


@in_cluster(wal_stores=1)
async def replace_the_wal_store_of_a_running_broker(script: Script) -> None:
    """Mount an empty store in place of the WAL store of a running leader, after an outage and
    without one, and kill the leader.
    """
    await _write(script)
    values = [*_VALUES]
    for outage_s in (2.0, 0.0):
        leader = 1 if outage_s else 2
        client = script.broker(leader).raw_wal_store
        assert client is not None
        if outage_s:
            script.world.wal_weather.down = True
            values.append(b"%d" % len(values))
            writing = script.producing(
                script.broker(leader), PART, script.batch((b"k", values[-1]))
            )
            await asyncio.sleep(outage_s)
            client.mount(_empty_bucket(script))
            script.world.wal_weather.down = False
            assert (await writing).error_code == ErrorCode.NONE, "the record is refused"
        else:
            client.mount(_empty_bucket(script))
            values.append(b"%d" % len(values))
            await script.write(PART, (b"k", values[-1]))
            await _until_in(script, leader, IN_STORE)
        script.kill(leader)
        await script.until_led(PART, 3 - leader)
        found = [record.value for record in await script.read(PART)]
        assert found == values, f"the log has {found}"
        started = script.world.start_broker(leader)
        await script.until(lambda started=started: started.serving)


@in_cluster(wal_stores=1)
async def lose_the_identity_of_the_wal_store(script: Script) -> None:
    """Write while the WAL store accepts slots but does not return its identity, then mount another
    store for so long that the WAL would return.
    """
    await _write(script)
    client = script.broker(1).raw_wal_store
    assert client is not None
    client.gates["get_tail"] = Held(None)
    await asyncio.sleep(12.0)  # the next check fails
    await script.write(PART, (b"k", b"%d" % _COUNT))
    assert _is_in(script, 1, IN_STORE), "a record is acknowledged without an identity"
    wrong = _empty_bucket(script)
    client.mount(wrong)
    del client.gates["get_tail"]
    await asyncio.sleep(2 * script.world.limits.wal_return_after_s)
    assert _is_in(script, 1, IN_STORE), "the WAL returns to another store"
    assert not wrong.keys, f"written to another store: {wrong.keys}"
    client.mount(_wal_bucket(script))
    await _until_in(script, 1, _STORE)
    await script.write(PART, (b"k", b"%d" % (_COUNT + 1)))
    found = [record.value for record in await script.read(PART)]
    assert found == [b"%d" % number for number in range(_COUNT + 2)], f"the log has {found}"


@in_cluster(wal_stores=1)
async def start_without_the_wal_store(script: Script) -> None:
    """Start all nodes while the WAL store is down, and write."""
    await _write(script)
    await asyncio.sleep(40.0)  # until everything is uploaded
    script.world.wal_weather.down = True
    script.kill(1)
    script.kill(2)
    script.world.start_broker(1)
    await script.restart_controller()
    await script.until(lambda: script.broker(1).serving)
    assert _is_in(script, 1, IN_STORE)
    await script.create("u")
    other = ("u", 0)
    await script.write(other, (b"k", b"v"))
    assert _waits_for_recovery(script), "a partition is handed over without its WAL"
    script.world.wal_weather.down = False
    await script.until_led(PART, 1)
    await _check_values(script)
    await _until_in(script, 1, _STORE)
    await script.write(other, (b"k", b"w"))


@in_cluster(wal_stores=1)
async def follow_a_wal_that_moves(script: Script) -> None:
    """Read the end of a log from the stores alone, with one view, while its WAL moves."""
    await _write(script)
    await asyncio.sleep(3.0)
    view, end = ClusterView(script.world.bucket, wal_store=_wal_bucket(script)), _COUNT

    async def check() -> None:
        await view.refresh()
        (state,) = await view.partitions(["t"])
        assert state.end_offset == end, f"the log is said to end at {state.end_offset}, not {end}"

    await check()
    script.world.wal_weather.down = True
    for _ in range(2):
        for _ in range(2):
            await script.write(PART, (b"k", b"v"))
            end += 1
            await check()
        script.world.wal_weather.down = False
        await _until_in(script, 1, _STORE)


async def _read_end(script: Script, wal_store: Bucket | None) -> int:
    view = ClusterView(script.world.bucket, wal_store=wal_store)
    await view.refresh()
    (state,) = await view.partitions(["t"])
    return state.end_offset


@in_cluster(wal_stores=1)
async def read_the_tail_from_a_wal_store(script: Script) -> None:
    """Read the end of a log from the stores alone: with the WAL store, without it, and with an
    empty store in its place.
    """
    await _write(script)
    await asyncio.sleep(3.0)  # until the manifest contains the topic
    end = await _read_end(script, _wal_bucket(script))
    assert end == _COUNT, f"the log is said to end at {end}"
    for other, refusal in ((None, WalStoreRequired), (_empty_bucket(script), WalStoreWrong)):
        try:
            end = await _read_end(script, other)
        except refusal:
            continue
        raise AssertionError(f"without the WAL store, the log is said to end at {end}")


@in_cluster(wal_stores=1)
async def read_the_tail_of_a_wal_that_vanished(script: Script) -> None:
    """Read the end of a log from the stores alone after the store has lost its whole WAL."""
    await _write(script)
    await asyncio.sleep(3.0)
    prefix = wal_prefix(script.broker(1).me, _STORE)
    for key in script.world.stored.keys_below(prefix):
        _wal_bucket(script).strike(script.world.stored.find(key)[1], None)
    try:
        end = await _read_end(script, _wal_bucket(script))
    except EndInDoubt:
        return
    raise AssertionError(f"the log is said to end at {end}")


@in_cluster(wal_stores=1, brokers=1)
async def read_the_tail_beside_a_wal_without_a_marker(script: Script) -> None:
    """Read the end of a log from the stores alone while its broker is restarting and has not
    written the marker of its new WAL yet.
    """
    await _write(script)
    await asyncio.sleep(3.0)
    script.kill(1)
    script.world.start_broker(1)
    held = script.hold_in_wal_store(1)
    await script.until(lambda: held.count)
    await asyncio.sleep(3.0)
    end = await _read_end(script, _wal_bucket(script))
    assert end == _COUNT, f"the log is said to end at {end}"
    held.release()
    await script.until(lambda: script.broker(1).serving)
    await script.until_led(PART, 1)
