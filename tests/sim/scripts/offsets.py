"""Scripts about log ends, leader epochs and lookups by time."""

from typing import Any

from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import list_offsets, offset_for_leader_epoch
from tests.sim.checkers import Part
from tests.sim.connections import NoResponse
from tests.sim.directed import Script
from tests.sim.nodes import SimBroker

PART: Part = ("t", 0)
LATEST, EARLIEST = -1, -2
_REFUSED = "an error"


async def ask_an_old_leader_for_the_end(script: Script) -> None:
    """Request the log end from a leader that is cut off from the controller, after its successor
    has appended a record.
    """
    await script.create("t")
    old = script.broker(1)
    with script.isolated(1):
        await _check_end(script, old)


async def ask_an_old_leader_behind_a_firewall_for_the_end(script: Script) -> None:
    """Request the log end from a leader whose connections to the controller are refused by a
    firewall, after its successor has appended a record.
    """
    await script.create("t")
    old = script.broker(1)
    with script.refused(1):
        await _check_end(script, old)


async def _check_end(script: Script, old: SimBroker) -> None:
    await script.until_led(PART, 2)
    await script.write(PART, (b"k", b"v"))
    found = await _offset(script, old, LATEST)
    assert found == _REFUSED, f"the old leader returns the end {found}"


async def name_an_old_leader_epoch(script: Script) -> None:
    """Send requests with the epoch of an earlier leader to its successor."""
    await script.create("t")
    await script.move(PART, 2)
    item = await listed(script, script.broker(2), LATEST, epoch=0)
    code = ErrorCode(item.error_code)
    assert code is ErrorCode.FENCED_LEADER_EPOCH, f"a request with an old epoch gets {code.name}"


async def ask_where_an_epoch_ended(script: Script) -> None:
    """Ask a leader for the end of its predecessor's epoch, after it has loaded the log."""
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    await script.move(PART, 2)
    await script.write(PART, (b"k", b"2"))
    await script.move(PART, 1)
    requested = offset_for_leader_epoch.OffsetForLeaderPartition(PART[1], -1, 0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(PART[0], [requested])
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])
    response = await script.send_request(script.broker(1), apis.OFFSET_FOR_LEADER_EPOCH, 4, request)
    found = response.topics[0].partitions[0]
    assert (found.leader_epoch, found.end_offset) == (0, 1), (
        f"epoch {found.leader_epoch} is said to end at {found.end_offset}"
    )


async def look_up_a_time(script: Script) -> None:
    """Look up the first record at or after a time, in a batch in memory and in an object."""
    await script.create("t")
    now_ms = script.world.now_ms()
    records = [Record(at, now_ms + 10 * at, b"k", b"%d" % at, ()) for at in range(3)]
    await script.produce(script.broker(1), PART, bytes(encode_batch(records)))
    for place in ("in memory", "in an object"):
        found = await _offset(script, script.broker(1), now_ms + 5)
        assert found == 1, f"the first record after a time is said to be {found}, {place}"
        await script.upload(1)


async def _offset(script: Script, broker: SimBroker, timestamp: int) -> int | str:
    try:
        found = await listed(script, broker, timestamp)
    except NoResponse:
        return _REFUSED
    return _REFUSED if found.error_code else int(found.offset)


async def listed(script: Script, broker: SimBroker, timestamp: int, epoch: int = -1) -> Any:
    """Request an offset by time from a broker once."""
    item = list_offsets.ListOffsetsPartition(PART[1], epoch, timestamp)
    topic = list_offsets.ListOffsetsTopic(PART[0], [item])
    request = list_offsets.ListOffsetsRequest(topics=[topic])
    response = await script.send_request(broker, apis.LIST_OFFSETS, 7, request)
    return response.topics[0].partitions[0]
