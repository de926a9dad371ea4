"""Scripts about log compaction."""

import asyncio
from typing import Final

from penstock.stream.cleaning.cleaner import CleanerConfig
from tests.sim.checkers import Part
from tests.sim.directed import Script
from tests.sim.directed_clients import Producer

PART: Part = ("t", 0)
_MAP_BYTES: Final = 2_000
_KEYS_COUNT: Final = 20
"""More keys than fit into a map of _MAP_BYTES."""


async def create(script: Script, policy: str = "compact", **configs: str) -> None:
    await script.create("t", cleanup_policy=policy, min_cleanable_dirty_ratio="0", **configs)


async def clean(script: Script) -> int:
    """Upload and clean the partitions that broker 1 leads. Return the number of removed records."""
    await script.upload(1)
    return await script.clean(1)


async def clean_some_keys(script: Script) -> None:
    """Clean a log in which keys were written several times, also within one batch."""
    await create(script)
    await script.write(PART, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    await script.write(PART, (b"b", b"2"), (b"c", b"1"))
    assert await clean(script) == 2
    found = await script.values(PART)
    assert found == {b"a": b"2", b"b": b"2", b"c": b"1"}, f"the log has {found}"


async def clean_a_value_and_its_tombstone(script: Script) -> None:
    """Clean a log in which a key was deleted, whose value a reader may have read."""
    await create(script)
    await script.write(PART, (b"k", b"v"))
    await script.write(PART, (b"k", None))
    await clean(script)
    found = await script.values(PART)
    assert found == {b"k": None}, f"the log has {found}"


async def delete_records_during_a_pass(script: Script) -> None:
    """Delete the value of a key while a pass replaces its range, which contains a tombstone that is
    not retained otherwise. Restore the value after two more passes.
    """
    grace = {"penstock_delete_grace_ms": "3600000", "delete_retention_ms": "0"}
    await create(script, "compact,delete", **grace)
    await script.write(PART, (b"k", b"v"))
    await script.upload(1)
    await script.write(PART, (b"k", None))
    await script.upload(1)
    held = script.hold(1, "put", first=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(script.clean(1))
        await script.until(lambda: held.count)
        await script.delete_records(PART, 1)
        held.release()
    for value in (b"1", b"2"):
        await asyncio.sleep(1.0)
        await script.write(PART, (b"l", value))
        await clean(script)
    await script.fork("f", "t", penstock_fork_deleted_records="true")
    found = await script.values(("f", 0))
    assert found == {b"k": None, b"l": b"2"}, f"the fork has {found}"


async def clean_more_keys_than_fit_into_the_map(script: Script) -> None:
    script.world.cleaner = CleanerConfig(key_map_bytes_max=_MAP_BYTES)
    await script.restart(1)
    await create(script)
    keys = [b"%03d" % number for number in range(_KEYS_COUNT)]
    for value in (b"old", b"new"):
        for key in keys:
            await script.write(PART, (key, value))
    for _ in keys:
        await clean(script)
    found = await script.values(PART)
    assert found == dict.fromkeys(keys, b"new"), f"the log has {found}"
    assert len(await script.read(PART)) == _KEYS_COUNT


async def clean_below_an_open_transaction(script: Script) -> None:
    """Clean a log with an open transaction that replaces a record, then abort the transaction."""
    await create(script)
    await script.write(PART, (b"k", b"old"))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"new"))
    await clean(script)
    await producer.end(commit=False)
    found = await script.values(PART, committed=True)
    assert found == {b"k": b"old"}, f"the log has {found}"


async def clean_an_aborted_transaction(script: Script) -> None:
    """Clean a log in which an aborted transaction has replaced a record, and whose producer has
    committed another record since.
    """
    await create(script)
    await script.write(PART, (b"k", b"old"))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"aborted"), (b"m", b"aborted"))
    await producer.end(commit=False)
    await producer.write(PART, (b"l", b"new"))
    await producer.end(commit=True)
    await clean(script)
    found = await script.values(PART, committed=True)
    assert found == {b"k": b"old", b"l": b"new"}, f"the log has {found}"
    stored = [record.value for record in await script.read(PART)]
    assert b"aborted" not in stored, "records of the aborted transaction are never deleted"


async def clean_all_records_of_a_producer(script: Script) -> None:
    """Repeat a batch whose records were cleaned, after the leader has loaded its
    producer states.
    """
    await create(script)
    first = await script.write(PART, (b"k", b"1"), producer_id=7, sequence=0)
    await script.write(PART, (b"k", b"2"))
    assert await clean(script) == 1
    await script.restart(1)
    again = await script.write(PART, (b"k", b"1"), producer_id=7, sequence=0)
    assert again == first, f"the batch at offset {first} is stored again at {again}"


async def clean_after_a_damaged_object_was_restored(script: Script) -> None:
    """Clean a log with a damaged object, restore the object, and clean again."""
    await create(script)
    for value in (b"old", b"new"):
        await script.write(PART, (b"k", value))
        await script.upload(1)
    bucket = script.world.bucket
    key = min((key for key in bucket.keys if key.startswith("data/")), key=bucket.modified_ms)
    damaged = bytearray(bucket.peek(key) or b"")
    damaged[len(damaged) // 3] ^= 1
    bucket.strike(key, bytes(damaged))
    assert await script.clean(1) == 0, "records of a damaged object are removed"
    bucket.restore(key)
    await asyncio.sleep(60)
    assert await script.clean(1) == 1, "the log is not cleaned after the damage was repaired"
