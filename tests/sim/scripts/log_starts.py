"""Scripts about records that are deleted on request."""

import asyncio
from typing import Any

from penstock.protocol import apis
from penstock.protocol.gen import delete_records
from tests.sim.checkers import Part
from tests.sim.directed import Script
from tests.sim.nodes import DELETE_RECORDS_VERSION
from tests.sim.scripts.offsets import EARLIEST, listed

PART: Part = ("t", 0)


def _request(offset: int) -> Any:
    wanted = delete_records.DeleteRecordsPartition(PART[1], offset)
    topic = delete_records.DeleteRecordsTopic(PART[0], [wanted])
    return delete_records.DeleteRecordsRequest([topic], timeout_ms=5_000)


async def delete(script: Script, offset: int) -> None:
    """Delete the records below this offset."""
    await script.repeat(
        lambda: script.leader(PART),
        (apis.DELETE_RECORDS, DELETE_RECORDS_VERSION, _request(offset)),
        lambda response: response.topics[0].partitions[0],
    )


async def _start(script: Script) -> int:
    """Return where the log starts, as its leader says."""
    await script.until_led(PART, 1)
    return int((await listed(script, script.broker(1), EARLIEST)).offset)


async def delete_what_a_producer_wrote(script: Script) -> None:
    """Repeat a batch whose record was deleted, after the leader has loaded its producers."""
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
    """Ask for the start of a log while a deletion cannot be committed."""
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    await script.upload(1)
    broker = script.broker(1)
    with script.isolated(1):
        connection = script.world.connect(broker)
        asyncio.ensure_future(
            connection.ask(apis.DELETE_RECORDS, DELETE_RECORDS_VERSION, _request(1), 5.0)
        ).add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(1.0)
        start = await _start(script)
        assert start == 0, f"the log is said to start at {start} before that is committed"
