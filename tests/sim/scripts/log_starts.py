"""Scripts about records that are deleted on request."""

import asyncio
from typing import Any

from penstock.protocol import apis
from penstock.protocol.gen import delete_records
from tests.sim.checkers import Part
from tests.sim.directed import JANITOR_S, Script, in_cluster
from tests.sim.log_starts import LogStarts
from tests.sim.nodes import DELETE_RECORDS_VERSION
from tests.sim.scripts.late_admin import setting, succeed
from tests.sim.scripts.offsets import EARLIEST, listed

PART: Part = ("t", 0)


def _request(offset: int) -> Any:
    requested = delete_records.DeleteRecordsPartition(PART[1], offset)
    topic = delete_records.DeleteRecordsTopic(PART[0], [requested])
    return delete_records.DeleteRecordsRequest([topic], timeout_ms=5_000)


async def delete(script: Script, offset: int) -> None:
    """Delete the records below this offset."""
    await script.repeat(
        lambda: script.leader(PART),
        (apis.DELETE_RECORDS, DELETE_RECORDS_VERSION, _request(offset)),
        lambda response: response.topics[0].partitions[0],
    )


async def _start(script: Script) -> int:
    """Return the log start according to the leader."""
    await script.until_led(PART, 1)
    return int((await listed(script, script.broker(1), EARLIEST)).offset)


async def delete_what_a_producer_wrote(script: Script) -> None:
    """Repeat a batch whose record was deleted, after the leader has loaded its producer states."""
    await script.create("t")
    first = await script.write(PART, (b"k", b"1"), producer_id=7, sequence=0)
    await script.write(PART, (b"k", b"2"))
    await delete(script, 2)
    await script.restart(1)
    start = await _start(script)
    assert start == 2, f"the log starts at {start}"
    again = await script.write(PART, (b"k", b"1"), producer_id=7, sequence=0)
    assert again == first, f"the batch at offset {first} is stored again at {again}"


async def delete_without_the_controller(script: Script) -> None:
    """Request the log start while a deletion cannot be committed."""
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    await script.upload(1)
    broker = script.broker(1)
    with script.isolated(1):
        connection = script.world.connect(broker)
        asyncio.ensure_future(
            connection.send_request(apis.DELETE_RECORDS, DELETE_RECORDS_VERSION, _request(1), 5.0)
        ).add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(1.0)
        start = await _start(script)
        assert start == 0, f"the log is said to start at {start} before that is committed"


@in_cluster(delete_grace_ms=3_600_000)
async def fork_with_deleted_records(script: Script) -> None:
    """Fork a topic together with its recently deleted records."""
    await script.create("t")
    for value in (b"1", b"2"):
        await script.write(PART, (b"k", value))
        await script.upload(1)
    await delete(script, 1)
    await asyncio.sleep(JANITOR_S)
    await script.fork("f", "t", penstock_fork_deleted_records="true")
    found = [record.value for record in await script.read(("f", 0))]
    assert found == [b"1", b"2"], f"the fork has {found}"


async def retain_records(script: Script) -> None:
    """Let brokers look for expired records in a topic with retention of an hour, and in one with
    retention of 1,000 bytes.
    """
    world = script.world
    world.log_starts = LogStarts(world, has_age=True)
    await script.restart(1)
    for name in ("t", "sized"):
        await script.create(name)
    for number in range(5):
        for name in ("t", "sized"):
            await script.write((name, 0), (b"k", bytes([number]) * 400))
        await script.upload(1)
    aged = setting("retention.ms", "3600000")
    await succeed(script, aged, setting("retention.bytes", "1000", topic="sized"))
    await asyncio.sleep(10.0)
    count = len(await script.read(PART))
    assert count == 5, f"{count} of 5 records are left of the last hour"
    topic = script.topic("sized").partitions[0]
    stream = world.metadata.image.streams.known(topic.data_stream_id)
    size_bytes = sum(entry.size_bytes for entry in stream.entries)
    assert 1_000 <= size_bytes < 2_000, f"{size_bytes} bytes are left of at least 1000"
