"""At a partition leader, a late copy of a transaction marker does not end a transaction that began
after the original marker.
"""

import asyncio

import pytest

from penstock.protocol.batch.control import Marker, decode_marker, encode_marker
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import CONTROL_MASK, TRANSACTIONAL_MASK
from penstock.protocol.batch.records import decode_records, encode_batch
from penstock.protocol.error_codes import ErrorCode
from tests.support.partition_harness import NOW, transactional


@pytest.fixture
async def one(harness):
    return await harness.leading("t", partitions=1)


async def first_transaction(broker, *, commit):
    """Write a transaction that ends at offset 2, with serial 10."""
    assert (await broker.produce("t", transactional(7, 0, b"first"))).error_code == 0
    assert (
        await broker.mark("t", 7, commit=commit, coordinator_epoch=3, serial=10) == ErrorCode.NONE
    )


@pytest.mark.parametrize("commit", [True, False])
async def test_a_late_copy_does_not_end_the_next_transaction(one, commit):
    await first_transaction(one, commit=commit)
    await one.produce("t", transactional(7, 1, b"second"))
    partition = await one.opened("t")
    assert await one.mark("t", 7, commit=commit, coordinator_epoch=3, serial=10) == ErrorCode.NONE
    assert partition.log.transactions.is_open(7)
    assert partition.log_end_offset == 3, "the copy is not appended"
    assert (
        await one.mark("t", 7, commit=not commit, coordinator_epoch=3, serial=12) == ErrorCode.NONE
    )
    assert await one.committed("t") == [b"first" if commit else b"second"]


async def test_a_copy_that_arrives_before_the_next_transaction_changes_nothing(one):
    await first_transaction(one, commit=True)
    assert await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=10) == ErrorCode.NONE
    await one.produce("t", transactional(7, 1, b"second"))
    assert await one.mark("t", 7, commit=False, coordinator_epoch=3, serial=12) == ErrorCode.NONE
    assert await one.committed("t") == [b"first"]


async def test_a_marker_of_a_transaction_without_records_here_is_not_late(one):
    await first_transaction(one, commit=True)
    assert await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=12) == ErrorCode.NONE
    assert (await one.opened("t")).log_end_offset == 3
    await one.produce("t", transactional(7, 1, b"third"))
    assert await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=12) == ErrorCode.NONE
    assert (await one.opened("t")).log.transactions.is_open(7)


async def test_serials_are_compared_within_one_coordinator_epoch(one):
    """A later coordinator ends open transactions with any serial; afterwards, copies of the earlier
    coordinator's markers are rejected.
    """
    await first_transaction(one, commit=True)
    await one.produce("t", transactional(7, 1, b"second"))
    assert await one.mark("t", 7, commit=True, coordinator_epoch=4, serial=2) == ErrorCode.NONE
    assert await one.committed("t") == [b"first", b"second"]
    await one.produce("t", transactional(7, 2, b"third"))
    assert (
        await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=11)
        == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )
    assert await one.mark("t", 7, commit=True, coordinator_epoch=4, serial=2) == ErrorCode.NONE
    assert await one.mark("t", 7, commit=False, coordinator_epoch=4, serial=5) == ErrorCode.NONE
    assert await one.committed("t") == [b"first", b"second"]


async def test_markers_without_a_serial_end_the_open_transaction(one):
    """Kafka's own tools abort hanging transactions this way."""
    await first_transaction(one, commit=True)
    await one.produce("t", transactional(7, 1, b"hangs"))
    assert await one.mark("t", 7, commit=False, coordinator_epoch=3) == ErrorCode.NONE
    await one.produce("t", transactional(7, 2, b"second"))
    assert await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=10) == ErrorCode.NONE
    assert (await one.opened("t")).log.transactions.is_open(7), (
        "the serial of the first transaction is still known"
    )


@pytest.mark.parametrize("way", ["move", "crash", "checkpoint and crash"])
async def test_the_next_leader_detects_a_late_copy(harness, one, way):
    await first_transaction(one, commit=True)
    await one.produce("t", transactional(7, 1, b"second"))
    two = await harness.broker(2)
    if way == "move":
        await harness.hand_over("t", two)
        await one.close()
    else:
        if way != "crash":
            await one.partitions.checkpoint_durably(await one.opened("t"))
        await one.crash()
        await harness.fail_over(one, two)
    partition = await two.opened("t")
    assert await two.mark("t", 7, commit=True, coordinator_epoch=3, serial=10) == ErrorCode.NONE
    assert partition.log.transactions.is_open(7)
    assert await two.mark("t", 7, commit=False, coordinator_epoch=3, serial=12) == ErrorCode.NONE
    assert await two.committed("t") == [b"first"]


async def test_a_repeated_marker_is_acknowledged_when_the_first_copy_is_durable(one):
    await one.produce("t", transactional(7, 0, b"first"))
    one.storage.stop_acknowledging()
    markings = [
        asyncio.ensure_future(one.mark("t", 7, commit=True, coordinator_epoch=3, serial=10))
        for _ in range(2)
    ]
    partition = await one.opened("t")
    while partition.log_end_offset < 2:  # noqa: ASYNC110 - an append sets no event
        await asyncio.sleep(0)
    assert not any(marking.done() for marking in markings)
    one.storage.resume_acknowledging()
    assert await asyncio.gather(*markings) == [ErrorCode.NONE, ErrorCode.NONE]
    assert partition.log_end_offset == 2


def test_the_serial_is_a_record_header_that_kafkas_tools_ignore():
    marker = Marker(7, 2, True, 5, 1 << 40)
    batch = encode_marker(marker, NOW)
    (record,) = decode_records(batch)
    assert (record.key, record.value) == (b"\0\0\0\1", b"\0\0\0\0\0\5"), "as without it"
    assert record.headers == (("serial", (1 << 40).to_bytes(8, "big")),)
    assert decode_marker(batch, 7, 2) == marker


def test_a_serial_of_another_size_is_corrupt():
    good = encode_marker(Marker(7, 2, True, 5, 1), NOW)
    (record,) = decode_records(good)

    bad = encode_batch(
        [record._replace(headers=(("serial", b"\1"),))],
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
    )
    with pytest.raises(BatchCorrupt, match="contains no marker"):
        decode_marker(bad, 7, 2)
