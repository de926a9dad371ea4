"""Scripts about a cluster whose WALs are in a store of their own, which fails on its own, or is
replaced by another one.
"""

import asyncio
from typing import Final

from penstock.base.ids import WalStoreId
from penstock.lake.manifest.errors import EndInDoubt, WalStoreRequired
from penstock.lake.manifest.view import ClusterView
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.errors import WalStoreWrong
from penstock.stream.format.keys import wal_prefix
from tests.sim.checkers import Part
from tests.sim.directed import Script, in_cluster
from tests.sim.store import Bucket

PART: Part = ("t", 0)
_COUNT: Final = 5
_VALUES: Final = [b"%d" % number for number in range(_COUNT)]
_STORE: Final = WalStoreId(1)


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
    """Return what an unmounted path, or another volume, looks like."""
    return Bucket(script.world.now_ms)


def _waits_for_recovery(script: Script) -> bool:
    return script.leader(PART) is not script.broker(2)


@in_cluster(wal_stores=1)
async def fail_over_in_a_wal_store(script: Script) -> None:
    """Kill a leader, and read slots that were committed in place after its WAL was cleaned."""
    await _write(script)
    script.kill(1)
    await script.until_led(PART, 2)
    await _check_values(script)
    script.world.start_broker(1)
    await asyncio.sleep(200.0)
    await script.restart(2)
    await _check_values(script)


@in_cluster(wal_stores=1)
async def fail_over_with_an_empty_store_mounted(script: Script) -> None:
    """Kill a leader while the recoverer has an empty store in the place of the WAL store."""
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
    """Kill a leader whose whole WAL the store has lost, with its marker; then restore it."""
    await _write(script)
    bucket = _wal_bucket(script)
    prefix = wal_prefix(script.broker(1).me, _STORE)
    keys = [script.world.stored.find(key)[1] for key in script.world.stored.keys_below(prefix)]
    assert len(keys) > _COUNT, f"the WAL has {keys}"
    for key in keys:
        bucket.strike(key, None)
    script.kill(1)
    await asyncio.sleep(20.0)
    assert _waits_for_recovery(script), "a WAL that vanished is taken for an empty one"
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


async def _read_end(script: Script, wal_store: Bucket | None) -> int:
    view = ClusterView(script.world.bucket, wal_store=wal_store)
    await view.refresh()
    (state,) = await view.partitions(["t"])
    return state.end_offset


@in_cluster(wal_stores=1)
async def read_the_tail_from_a_wal_store(script: Script) -> None:
    """Read the end of a log from the stores alone: with the WAL store, without it, and with an
    empty one in its place.
    """
    await _write(script)
    await asyncio.sleep(3.0)  # until the manifest has the topic
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
    """Read the end of a log from the stores alone after the store lost its whole WAL."""
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
    """Read the end of a log from the stores alone while its broker starts again, and has not
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
