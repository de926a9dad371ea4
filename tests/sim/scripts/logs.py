"""Scripts about the logs of partitions: appends and recovery."""

from penstock.protocol.error_codes import ErrorCode
from tests.sim.checkers import Part
from tests.sim.directed import Script
from tests.sim.producer_mutants import FEW_PRODUCERS

PART: Part = ("t", 0)


async def write_between_the_last_read_and_the_fence(script: Script) -> None:
    """Let a broker that was declared dead, and that uses no lease, write a record after its WAL was
    read and before it is fenced.
    """
    script.world.leases = False
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    old = script.broker(1)
    with script.isolated(1):
        fencing = script.hold(2)
        await script.until(lambda: fencing.count)
        data = script.batch((b"k", b"2"))
        item = await script.produce(old, PART, data)
        fencing.release()
        await script.until_led(PART, 2)
        found = [record.value for record in await script.read(PART)]
    assert item.error_code == ErrorCode.NONE
    assert found == [b"1", b"2"], f"the log has {found}"


async def write_out_of_order_to_an_old_leader(script: Script) -> None:
    """Write with a gap in the sequence numbers to a leader that was replaced without
    its knowledge.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"0"), producer_id=0, sequence=0)
    old = script.broker(1)
    with script.refused(1):
        await script.until_led(PART, 2)
        await script.write(PART, (b"k", b"1"), producer_id=0, sequence=1)
        data = script.batch((b"k", b"2"), producer_id=0, epoch=0, sequence=2)
        code = ErrorCode((await script.produce(old, PART, data)).error_code)
    assert code.retriable, f"the old leader refuses the next batch by {code.name}"


async def write_after_a_refused_batch(script: Script) -> None:
    """Send the second of three batches to a broker just before it leads, and then the third."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"), producer_id=0, sequence=0)

    async def send(sequence: int) -> ErrorCode:
        data = script.batch((b"k", b"%d" % sequence), producer_id=0, epoch=0, sequence=sequence)
        return ErrorCode((await script.produce(script.broker(2), PART, data)).error_code)

    assert (await send(1)).retriable
    await script.move(PART, 2)
    code = await send(2)
    assert code.retriable, f"a batch after a refused one is refused with {code.name}"
    for sequence in (1, 2):
        assert await send(sequence) is ErrorCode.NONE


async def repeat_a_batch_after_other_producers(script: Script) -> None:
    """Repeat a producer's batch after other producers have written to the partition."""
    first = await _write_as_many(script)
    await _check_repeated(script, first)


async def repeat_a_batch_after_a_restart(script: Script) -> None:
    """Repeat a producer's batch after the leader has restarted and loaded the producer states from
    a checkpoint.
    """
    first = await _write_as_many(script)
    await script.checkpoint(PART)
    await script.restart(1)
    await _check_repeated(script, first)


async def _write_as_many(script: Script) -> int:
    await script.create("t")
    first = await script.write(PART, (b"k", b"0"), producer_id=0, sequence=0)
    for producer_id in range(1, 2 * FEW_PRODUCERS):
        await script.write(PART, (b"k", b"%d" % producer_id), producer_id=producer_id, sequence=0)
    return first


async def _check_repeated(script: Script, first: int) -> None:
    again = await script.write(PART, (b"k", b"0"), producer_id=0, sequence=0)
    found = [record.value for record in await script.read(PART)]
    assert (again, found.count(b"0")) == (first, 1), (
        f"the batch is stored {found.count(b'0')} times"
    )
