"""Reading a coordinator's log terminates for any content of the storage, because it shares the
event loop.
"""

import pytest

from penstock.broker.coordination.log import TopicLog
from penstock.broker.partition.aborted_transactions import LogInconsistent
from penstock.protocol.batch.control import Marker
from penstock.protocol.error_codes import ErrorCode
from tests.support.partition_harness import batch, transactional
from tests.support.waiting import until


@pytest.fixture
async def broker(harness):
    broker = await harness.broker(1)
    harness.topic("t")
    return broker


async def nothing(*_):
    return []


async def test_appended_records_are_read_and_an_empty_read_is_an_error(broker, monkeypatch):
    await broker.opened("t")
    for value in (b"a", b"b"):
        await broker.produce("t", batch(value))
    log = TopicLog(broker, "t")
    assert [record[1] async for found in log.read(0) for record in found.records] == [b"a", b"b"]
    monkeypatch.setattr(broker.storage.reader, "read", nothing)
    with pytest.raises(LogInconsistent, match="no batch begins at offset 0, the log ends at 2"):
        [found async for found in log.read(0)]


async def test_missing_transaction_events_are_an_error(broker, monkeypatch):
    partition = await broker.opened("t")
    await broker.produce("t", transactional(7, 0, b"a"))
    await broker.mark("t", 7, commit=False)
    end_offset = partition.high_watermark
    assert [found.producer_id for found in await partition.read_aborted(0, end_offset)] == [7]
    monkeypatch.setattr(broker.storage.reader, "read", nothing)
    with pytest.raises(LogInconsistent, match="no batch begins at offset 0"):
        await partition.read_aborted(0, end_offset)


@pytest.mark.parametrize("is_refused", [True, False])
async def test_a_record_and_its_markers_are_appended_atomically(broker, harness, is_refused):
    harness.topic("u")
    led, other = await broker.opened("t"), await broker.opened("u")
    await broker.produce("u", transactional(7, 0, b"a"))
    other.accepts_records = not is_refused
    codes = []
    TopicLog(broker, "t").append(
        0, [(b"key", b"value")], codes.append, markers=[(other, Marker(7, 0, True, 1))]
    )
    await until(lambda: codes)
    assert (codes == [ErrorCode.NONE]) == (not is_refused)
    assert (led.log_end_offset, other.log_end_offset) == ((0, 1) if is_refused else (1, 2))
    assert other.log.transactions.is_open(7) == is_refused
