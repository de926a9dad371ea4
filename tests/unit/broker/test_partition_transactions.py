"""Transactions in a partition over real storage: stable offsets and fencing survive close, crash
and move.
"""

import asyncio

import pytest

from penstock.broker.partition.append import PartitionAppend
from penstock.broker.partition.log import LogConfig
from penstock.protocol.batch.control import Marker
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from tests.support.partition_harness import NOW, batch, key_of, transactional
from tests.support.waiting import PATIENCE_S


@pytest.fixture
async def one(harness):
    return await harness.leading("t", partitions=1)


async def stable(broker):
    found = (await broker.fetch("t", isolation_level=1)).raw
    latest = await broker.list_offsets("t", -1, isolation_level=1)
    assert (latest.error_code, latest.offset) == (0, found.last_stable_offset)
    return found.last_stable_offset


async def test_a_transaction_is_visible_only_after_its_marker(one):
    await one.produce("t", batch(b"plain"))
    assert (await one.produce("t", transactional(7, 0, b"a", b"b"))).base_offset == 1
    assert (await one.produce("t", batch(b"behind"))).base_offset == 3
    assert await stable(one) == 1
    assert await one.committed("t") == [b"plain"]
    assert (await one.list_offsets("t", -1)).offset == 4
    assert (await one.fetch("t")).values == [b"plain", b"a", b"b", b"behind"], (
        "a reader of uncommitted records sees them"
    )
    assert (await one.fetch("t")).raw.aborted_transactions is None
    assert await one.mark("t", 7, commit=True) == ErrorCode.NONE
    assert await stable(one) == 5
    assert await one.committed("t") == [b"plain", b"a", b"b", b"behind"]


async def test_only_aborted_transactions_are_listed(one):
    await one.produce("t", transactional(7, 0, b"gone"))
    await one.produce("t", transactional(8, 0, b"kept"))
    await one.mark("t", 8, commit=True)
    await one.produce("t", transactional(7, 1, b"gone too"))
    assert await stable(one) == 0
    await one.mark("t", 7, commit=False)
    await one.produce("t", transactional(7, 2, b"second"))
    await one.mark("t", 7, commit=True)
    raw = (await one.fetch("t", isolation_level=1)).raw
    assert [(item.producer_id, item.first_offset) for item in raw.aborted_transactions] == [(7, 0)]
    assert await one.committed("t") == [b"kept", b"second"]
    later = (await one.fetch("t", 5, isolation_level=1)).raw
    assert later.aborted_transactions == [], "it ended below"


async def test_markers_are_encoded_like_in_kafka(one):
    await one.produce("t", transactional(7, 0, b"a"))
    await one.mark("t", 7, commit=False, coordinator_epoch=9)
    await one.mark("t", 7, commit=True, coordinator_epoch=9)
    raw = bytes((await one.fetch("t", 1)).raw.records)
    attributes, pid, epoch, sequence = raw[21:23], raw[43:51], raw[51:53], raw[53:57]
    assert (attributes, pid, epoch, sequence) == (
        b"\0\x30",
        (7).to_bytes(8, "big"),
        b"\0\0",
        b"\xff\xff\xff\xff",
    )
    # length 16, attributes, deltas, key of 4 bytes: version 0, type; value of 6 bytes: version 0,
    # coordinator epoch; no headers
    assert raw[61:78] == bytes([32, 0, 0, 0, 8, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 9, 0])
    second = raw[78:]
    assert second[65:70] == bytes([8, 0, 0, 0, 1]), "1: commit"


async def test_markers_may_be_duplicated_or_without_a_transaction(one):
    assert await one.mark("t", 5, commit=True) == ErrorCode.NONE
    await one.produce("t", transactional(7, 0, b"a"))
    assert await one.mark("t", 7, commit=False) == ErrorCode.NONE
    assert await one.mark("t", 7, commit=False) == ErrorCode.NONE
    assert await stable(one) == 4
    raw = (await one.fetch("t", isolation_level=1)).raw
    assert [(item.producer_id, item.first_offset) for item in raw.aborted_transactions] == [(7, 1)]
    assert await one.mark("t", -1, commit=True) == ErrorCode.INVALID_REQUEST
    assert await one.mark("t", 7, commit=True, index=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_old_producers_and_old_coordinators_are_fenced(one):
    await one.produce("t", transactional(7, 0, b"a", epoch=3))
    assert (
        await one.produce("t", transactional(7, 0, b"x", epoch=2))
    ).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await one.mark("t", 7, 2, commit=False) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await one.mark("t", 7, 4, commit=False, coordinator_epoch=5) == ErrorCode.NONE
    assert (
        await one.produce("t", transactional(7, 1, b"zombie", epoch=3))
    ).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (
        await one.produce("t", transactional(7, 1, b"x", epoch=4))
    ).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (
        await one.mark("t", 7, 4, commit=True, coordinator_epoch=4)
        == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )
    assert (await one.produce("t", transactional(7, 0, b"b", epoch=4))).error_code == 0
    assert await one.mark("t", 7, 4, commit=True, coordinator_epoch=6) == ErrorCode.NONE
    assert await one.committed("t") == [b"b"]


async def test_a_producer_cannot_write_other_batches_during_its_transaction(one):
    await one.produce("t", transactional(7, 0, b"a"))
    plain = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    assert (await one.produce("t", plain)).error_code == ErrorCode.INVALID_TXN_STATE
    one.is_unsure = True
    assert (await one.produce("t", plain)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
        "another leader may have the end"
    )
    one.is_unsure = False
    assert (await one.produce("t", transactional(7, 0, b"a"))).base_offset == 0, (
        "a repetition is one"
    )
    await one.mark("t", 7, commit=True)
    assert (await one.produce("t", transactional(7, 0, b"a"))).base_offset == 0, (
        "also when the transaction is over"
    )
    assert (await one.produce("t", plain)).error_code == 0
    assert await stable(one) == 3


@pytest.mark.parametrize(("attributes", "pid"), [(0x20, 7), (0x30, 7), (0x10, -1)])
async def test_clients_cannot_write_markers_or_transactions_without_a_producer_id(
    one, attributes, pid
):
    bad = batch(b"x", producer_id=pid, producer_epoch=0, base_sequence=0, attributes=attributes)
    assert (await one.produce("t", bad)).error_code == ErrorCode.INVALID_RECORD


async def test_a_coordinator_writes_for_a_producer_without_a_sequence(one):
    partition = await one.opened("t")
    for _ in range(2):
        raw = encode_batch(
            [Record(0, NOW, b"k", b"v")],
            producer_id=7,
            producer_epoch=1,
            attributes=TRANSACTIONAL_MASK,
        )
        settled: asyncio.Future[PartitionAppend] = asyncio.get_running_loop().create_future()
        group = PartitionAppend(settled.set_result, from_coordinator=True)
        group.run(one.storage, [(partition, memoryview(raw))], NOW)
        assert await settled is group
        assert group.outcomes[0].code == ErrorCode.NONE
    assert await stable(one) == 0
    assert (await one.produce("t", raw)).error_code == ErrorCode.INVALID_RECORD, (
        "from a client it is refused"
    )
    await one.mark("t", 7, 1, commit=True)
    assert await one.committed("t") == [b"v", b"v"]


async def test_a_read_committed_fetch_returns_when_records_become_stable(one):
    poll = asyncio.ensure_future(
        one.fetch_all([("t", 0, 0)], max_wait_ms=30_000, isolation_level=1)
    )
    await one.produce("t", transactional(7, 0, b"a"))
    await one.produce("t", batch(b"b"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not poll.done()
    await one.mark("t", 7, commit=True)
    async with asyncio.timeout(PATIENCE_S):
        found = (await poll).responses[0].partitions[0]
    assert found.last_stable_offset == 3
    assert found.records


async def test_a_transaction_ends_only_when_its_marker_is_durable(one):
    await one.produce("t", transactional(7, 0, b"a"))
    one.storage.stop_acknowledging()
    marking = asyncio.ensure_future(one.mark("t", 7, commit=True))
    partition = await one.opened("t")
    await asyncio.sleep(0)
    assert partition.log_end_offset == 2
    assert not partition.log.transactions.is_open(7)
    assert partition.last_stable_offset == 0
    one.storage.resume_acknowledging()
    assert await marking == ErrorCode.NONE
    assert partition.last_stable_offset == 2


async def test_open_transactions_are_limited(harness, one):
    partition = await one.opened("t")
    limit = LogConfig().open_transactions_count_max
    for pid in range(limit):
        partition.log.transactions.begin(1_000 + pid, pid)
    assert (await one.produce("t", transactional(1_000, 0, b"goes on"))).error_code == 0
    refused = await one.produce("t", transactional(7, 0, b"one more"))
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
    assert await one.mark("t", 1_000, commit=True) == ErrorCode.NONE
    behind = await one.produce("t", transactional(7, 1, b"was on its way"))
    assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
        "there is room now, but it was sent after the refused one"
    )
    assert [
        (await one.produce("t", transactional(7, at, b"again"))).error_code for at in (0, 1)
    ] == [0, 0]


async def interleave(broker, pids, start, rounds=3):
    """Let each producer commit, abort, and leave its last transaction open. Return the committed
    values, and the offset of the first open transaction.
    """
    sequences = dict.fromkeys(pids, start)
    kept = []
    for number in range(rounds):
        for pid in pids:
            value = b"%d-%d" % (pid, number)
            assert (
                await broker.produce("t", transactional(pid, sequences[pid], value))
            ).error_code == 0
            sequences[pid] += 1
            if number < rounds - 1:
                commit = (pid + number) % 2 == 0
                assert await broker.mark("t", pid, commit=commit) == ErrorCode.NONE
                kept += [value] if commit else []
    return kept


@pytest.mark.parametrize("way", ["move", "crash", "checkpoint and crash"])
async def test_the_next_leader_loads_the_last_stable_offset_and_aborted_transactions(
    harness, one, way
):
    kept = await interleave(one, [4, 5, 6], 0)
    before = await stable(one), await one.committed("t"), await aborted(one)
    assert before[1] == kept
    two = await harness.broker(2)
    if way == "move":
        harness.lead("t", two)
    else:
        if way != "crash":
            await one.partitions.checkpoint_durably(await one.opened("t"))
            await one.produce("t", transactional(9, 0, b"after"))
        await one.crash()
        await harness.fail_over(one, two)
    await two.opened("t")
    if way == "move":
        await one.close()
    assert (await stable(two), await two.committed("t"), await aborted(two)) == before
    assert (await two.opened("t")).log.transactions.aborted_within(0, 100) is None, (
        "read from the txn stream"
    )
    for pid in (4, 5, 6):
        assert (await two.produce("t", transactional(pid, 3, b"%d-last" % pid))).error_code == 0
        assert await two.mark("t", pid, commit=pid != 5) == ErrorCode.NONE
    assert await two.mark("t", 9, commit=False) == ErrorCode.NONE
    values = await two.committed("t")
    assert [
        value
        for value in values
        if value in {b"4-2", b"5-2", b"6-2", b"4-last", b"5-last", b"6-last"}
    ] == [b"4-2", b"6-2", b"4-last", b"6-last"]


async def aborted(broker):
    raw = (await broker.fetch("t", isolation_level=1)).raw
    return [(item.producer_id, item.first_offset) for item in raw.aborted_transactions]


async def test_aborted_transactions_that_are_not_in_memory_are_read_from_the_stream(harness, one):
    partition = await one.opened("t")
    partition.log.transactions._aborted_count_max = 2
    for number in range(6):
        await one.produce("t", transactional(7, number, b"%d" % number))
        await one.mark("t", 7, commit=number % 2 == 0)
    assert partition.log.transactions.aborted_within(0, 12) is None
    assert await aborted(one) == [(7, 2), (7, 6), (7, 10)]
    assert await one.committed("t") == [b"0", b"2", b"4"]
    assert partition.log.transactions.aborted_within(6, 12) == [(7, 6, 7), (7, 10, 11)]


async def test_the_txn_stream_is_trimmed_with_the_log(harness, one):
    for number in range(4):
        await one.produce("t", transactional(7, number, b"%d" % number))
        await one.mark("t", 7, commit=False)
    partition = await one.opened("t")
    assert partition.log.txn_trim_offset is None
    await one.storage.trim(partition.log.data, 5)
    assert partition.log.txn_trim_offset == 5
    await one.partitions._opener.checkpoint([partition])
    assert partition.log.txn.start_offset == 5
    two = await harness.broker(2)
    await harness.hand_over("t", two)
    raw = (await two.fetch("t", 5, isolation_level=1)).raw
    assert [(item.producer_id, item.first_offset) for item in raw.aborted_transactions] == [
        (7, 4),
        (7, 6),
    ]
    assert (
        harness.image.topics.partition(key_of(harness, "t")).txn_stream_id
        == partition.log.txn.stream_id
    )


async def test_a_partition_without_transactions_has_an_empty_txn_stream(harness, one):
    await one.produce("t", batch(b"a"))
    partition = await one.opened("t")
    assert partition.log.txn.next_offset == 0
    assert partition.log.plan_marker(Marker(1, 0, True, 0), NOW)[1].record_count == 1
