"""Scripts in which a broker in the consumer's rack serves partitions of another leader."""

from tests.sim.directed import Script
from tests.sim.directed_clients import Producer
from tests.sim.scripts.transactions import PART


async def read_objects_near(script: Script) -> None:
    await _read(script, is_uploaded=True)


async def read_the_tail_near(script: Script) -> None:
    await _read(script, is_uploaded=False)


async def read_an_abort_near_whose_records_are_uploaded(script: Script) -> None:
    """Read an aborted transaction from objects. Its marker is the first record of the tail."""
    await script.create("t")
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"a", b"aborted"))
    await script.upload(1)
    await producer.end(commit=False)
    end = await script.write(PART, (b"b", b"plain")) + 1
    found = await script.read_near(PART, 2, end, committed=True)
    values = [record.value for record in found]
    assert not values, f"readers of committed records get {values}"


async def _read(script: Script, *, is_uploaded: bool) -> None:
    """Read an aborted and an open transaction, from objects or from the tail of the WAL."""
    await script.create("t")
    await script.write(PART, (b"a", b"plain"))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"b", b"aborted"))
    await producer.end(commit=False)
    await script.until(lambda: script.broker(1).storage.wal_end >= 3)
    end = await producer.write(PART, (b"c", b"open")) + 1
    if is_uploaded:
        await script.upload(1)
    found = await script.read_near(PART, 2, end, committed=True)
    values = [record.value for record in found]
    assert values == [b"plain"], f"readers of committed records get {values}"
