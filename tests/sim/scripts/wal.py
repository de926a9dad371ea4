"""Scripts about the WAL: acknowledgments, fences, recovery and closes."""

import asyncio
from typing import Any, Final

from penstock.base.ids import WalSequence
from penstock.lake.manifest.errors import EndInDoubt
from penstock.lake.manifest.view import ClusterView
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE
from tests.sim.checkers import Part
from tests.sim.directed import JANITOR_S, Script

PART: Part = ("t", 0)
_COUNT: Final = 10


def is_acknowledged(item: Any) -> bool:
    return item is not None and item.error_code == ErrorCode.NONE


async def check_values(script: Script, part: Part, *expected: bytes) -> None:
    found = [record.value for record in await script.read(part)]
    assert found == list(expected), f"the log has {found}"


async def write_while_the_store_does_not_respond(script: Script) -> None:
    """Write a record, and repeat it, while the first PUT is in flight."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    held = script.hold(1, first=1)
    data = script.batch((b"k", b"1"), producer_id=7, epoch=0, sequence=0)
    first = script.producing(script.broker(1), PART, data)
    await script.until(lambda: held.count)
    again = script.producing(script.broker(1), PART, data)
    later = script.producing(script.broker(1), PART, script.batch((b"k", b"2")))
    await asyncio.sleep(0.5)
    assert held.count > 1, "the second slot is not under way"
    assert not first.done(), "a record is acknowledged before it is durable"
    assert not again.done(), "a repeated record is acknowledged before it is durable"
    assert not later.done(), "a record is acknowledged before one that precedes it"
    end = await script.high_watermark(PART)
    assert end == 1, f"the high watermark is {end} before a record is durable"
    held.release()
    offsets = [(await task).base_offset for task in (first, again, later)]
    assert offsets == [1, 1, 2], f"the records have the offsets {offsets}"
    await check_values(script, PART, b"0", b"1", b"2")


async def lose_the_response_of_a_put(script: Script) -> None:
    await script.create("t")
    script.hold_responses(1, first=1)
    await script.write(PART, (b"k", b"v"))
    await check_values(script, PART, b"v")


async def write_with_a_gap(script: Script) -> None:
    await script.create("t")
    await script.write(PART, (b"k", b"0"), producer_id=7, sequence=0)
    data = script.batch((b"k", b"2"), producer_id=7, epoch=0, sequence=2)
    code = ErrorCode((await script.produce(script.broker(1), PART, data)).error_code)
    assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"a gap gets {code.name}"


async def write_to_a_fenced_leader(script: Script) -> None:
    """Write to a broker without a lease after its WAL was fenced."""
    script.world.leases = False
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    with script.isolated(1):
        await script.until_led(PART, 2)
        late = script.producing(script.broker(1), PART, script.batch((b"k", b"late")))
        await script.write(PART, (b"k", b"2"))
        await asyncio.sleep(1.0)
    assert not (late.done() and is_acknowledged(late.result())), "a fenced leader acknowledges"
    await check_values(script, PART, b"1", b"2")


async def fail_over(script: Script) -> None:
    """Kill a leader whose records are in many slots, some of an idempotent producer. Slots that
    were committed in place are read later.
    """
    await script.create("t")
    for number in range(_COUNT):
        await script.write(PART, (b"k", b"%d" % number), producer_id=7, sequence=number)
    script.kill(1)
    await script.until_led(PART, 2)
    again = await script.write(PART, (b"k", b"9"), producer_id=7, sequence=_COUNT - 1)
    assert again == _COUNT - 1, f"the last batch is stored again at {again}"
    script.world.start_broker(1)
    await asyncio.sleep(JANITOR_S)
    await script.restart(2)
    await check_values(script, PART, *(b"%d" % number for number in range(_COUNT)))


async def move_with_a_record_under_way(script: Script) -> None:
    """Move a partition while a record is being written, and repeat a batch at the next leader."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"), producer_id=7, sequence=0)
    held = script.hold(1, first=1)
    writing = script.producing(script.broker(1), PART, script.batch((b"k", b"1")))
    await script.until(lambda: held.count)
    moving = asyncio.ensure_future(script.move(PART, 2))
    await asyncio.sleep(0.5)
    held.release()
    await moving
    assert is_acknowledged(await writing), "the record is refused"
    again = await script.write(PART, (b"k", b"0"), producer_id=7, sequence=0)
    assert again == 0, f"a batch is stored again at {again}"
    await asyncio.sleep(2 * JANITOR_S)
    await script.restart(2)
    await check_values(script, PART, b"0", b"1")


async def upload_without_a_commit(script: Script) -> None:
    """Kill a leader after an upload that it could not commit."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    broker = script.broker(1)
    held = script.hold(1, "put")
    script.begin(broker, broker.storage.upload)
    await script.until(lambda: held.count)
    with script.isolated(1):
        held.release()
        await asyncio.sleep(2.0)
        script.kill(1)
        await script.until_led(PART, 2)
    await check_values(script, PART, b"v")


async def commit_late(script: Script) -> None:
    """Let a broker commit an upload after it was replaced."""
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    broker = script.broker(1)
    held = script.hold(1, "put")
    script.begin(broker, broker.storage.upload)
    await script.until(lambda: held.count)
    broker.process.pause()
    held.release()
    await script.until_led(PART, 2)
    await script.write(PART, (b"k", b"2"))
    broker.process.resume(script.world.loop)
    await asyncio.sleep(5.0)
    await script.restart(2)
    await check_values(script, PART, b"1", b"2")


async def lose_a_slot(script: Script) -> None:
    """Kill a leader while the store has lost one of its slots, which reappears."""
    await script.create("t")
    for number in range(3):
        await script.write(PART, (b"k", b"%d" % number))
    key = wal_key(script.broker(1).me, WalSequence(1), IN_STORE)
    script.world.bucket.strike(key, None)
    script.kill(1)
    await asyncio.sleep(5.0)
    script.world.bucket.restore(key)
    await script.until_led(PART, 2)
    await check_values(script, PART, b"0", b"1", b"2")


async def crash_with_slots_under_way(script: Script) -> None:
    """Kill a leader whose later slot is stored and whose earlier one never arrives."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    held, broker = script.hold(1, first=1), script.broker(1)
    script.producing(broker, PART, script.batch((b"k", b"1")))
    await script.until(lambda: held.count == 1)
    script.producing(broker, PART, script.batch((b"k", b"2")))
    await script.until(lambda: held.count == 2)
    await asyncio.sleep(0.5)
    script.kill(1)
    await script.until_led(PART, 2)
    await check_values(script, PART, b"0")


async def read_a_tail_with_a_lost_slot(script: Script) -> None:
    """Read the ends of a log from the store alone, while the store has lost a slot."""
    await script.create("t")
    await asyncio.sleep(15.0)  # until the manifest contains the topic
    for number in range(3):
        await script.write(PART, (b"k", b"%d" % number))
    script.world.bucket.strike(wal_key(script.broker(1).me, WalSequence(1), IN_STORE), None)
    view = ClusterView(script.world.bucket)
    try:
        await view.refresh()
        (state,) = await view.partitions(["t"])
    except EndInDoubt:
        return
    raise AssertionError(f"the log is said to end at {state.end_offset}")


async def read_a_damaged_object(script: Script) -> None:
    """Read from a damaged object that precedes an intact one."""
    await script.create("t")
    for value in (b"1", b"2"):
        await script.write(PART, (b"k", value))
        await script.upload(1)
    await script.checkpoint(PART)
    bucket = script.world.bucket
    objects = [key for key in bucket.keys if key.startswith("data/")]
    first = min(objects, key=bucket.modified_ms)
    damaged = bytearray(bucket.peek(first) or b"")
    damaged[len(damaged) // 3] ^= 1
    bucket.strike(first, bytes(damaged))
    await script.restart(1)
    try:
        found = [record.value for record in await script.read(PART)]
    except AssertionError:
        return
    raise AssertionError(f"the log has {found}")


async def upload_two_blocks_at_once(script: Script) -> None:
    """Complete the later upload first."""
    await script.create("t")
    broker, held, uploads = script.broker(1), script.hold(1, "put", first=1), list[Any]()
    for value in (b"1", b"2"):
        await script.write(PART, (b"k", value))
        uploads.append(script.begin(broker, broker.storage.upload))
        await script.until(lambda: held.count == len(uploads))
    await asyncio.sleep(1.0)
    held.release()
    _, unfinished = await asyncio.wait(uploads, timeout=10.0)
    assert not unfinished, "an upload is not committed"
    await script.restart(1)
    await check_values(script, PART, b"1", b"2")
