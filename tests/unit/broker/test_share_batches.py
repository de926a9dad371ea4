"""How a share partition reads fetched batches and encodes its responses."""

from uuid import UUID

import pytest

from penstock.base.ids import Millis, Offset, StreamEpoch
from penstock.broker.groups.share.partitions.batches import FetchedBatches
from penstock.broker.groups.share.partitions.window import Bounds
from penstock.protocol.batch.control import Marker, encode_marker
from penstock.protocol.batch.header import TRANSACTIONAL_MASK, patch_offset_and_epoch
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.gen import share_fetch
from penstock.protocol.leader_hint import CurrentLeader, NodeEndpoint
from penstock.protocol.primitives import Reader
from penstock.protocol.share_fetch import ShareFetchPartitionResult, encode_share_fetch_response
from penstock.stream.format.transaction_log import AbortedTransaction


def batch(first: int, count: int, *, producer_id: int = -1) -> bytes:
    records = [Record(first + number, 0, None, b"v%d" % number) for number in range(count)]
    attributes = TRANSACTIONAL_MASK if producer_id >= 0 else 0
    return bytes(
        encode_batch(records, base_offset=first, producer_id=producer_id, attributes=attributes)
    )


def marker(offset: int, producer_id: int) -> bytes:
    found = encode_marker(Marker(producer_id, 0, committed=False, coordinator_epoch=0), Millis(0))
    patch_offset_and_epoch(found, 0, Offset(offset), StreamEpoch(0))
    return bytes(found)


FIRST, SECOND, THIRD = batch(0, 10), batch(10, 5), batch(20, 5)


def test_batches_are_limited_to_acquired_records() -> None:
    found = FetchedBatches([FIRST + SECOND, THIRD], 100)
    assert found.bounds == [Bounds(0, 10), Bounds(10, 15), Bounds(20, 25)]
    assert b"".join(found.within(0, 24)) == FIRST + SECOND + THIRD
    assert b"".join(found.within(12, 12)) == SECOND
    assert b"".join(found.within(12, 20)) == SECOND + THIRD
    assert b"".join(found.within(16, 24)) == THIRD
    assert b"".join(found.within(3, 17)) == FIRST + SECOND


def test_only_the_requested_batches_are_parsed() -> None:
    found = FetchedBatches([FIRST + SECOND, THIRD], 10)
    assert found.bounds == [Bounds(0, 10)]
    assert found.size_bytes == len(FIRST)


def test_aborted_batches_are_detected() -> None:
    chunks = [
        batch(0, 2, producer_id=1) + batch(2, 2, producer_id=2),
        marker(4, 1) + batch(5, 2, producer_id=1) + batch(7, 1),
    ]
    found = FetchedBatches(chunks, 100)
    found.find_aborted(None)
    assert found.aborted is None
    found.find_aborted([AbortedTransaction(1, 0, 4)])
    assert found.aborted == [Bounds(0, 2)]
    found.find_aborted([])
    assert found.aborted == []


@pytest.mark.parametrize("version", [1, 2])
def test_the_generated_codec_decodes_the_response(version: int) -> None:
    topic_id = UUID(int=5)
    results = [
        ShareFetchPartitionResult(0, records=[FIRST, SECOND], acquired=[(0, 9, 1), (10, 14, 2)]),
        ShareFetchPartitionResult(1, 6, 121, CurrentLeader(3, 4)),
    ]
    endpoints = [NodeEndpoint(3, "host", 9092), NodeEndpoint(4, "other", 1, "rack")]
    frame = b"".join(
        encode_share_fetch_response(
            77, [(topic_id, results)], lock_timeout_ms=30_000, node_endpoints=endpoints
        )
    )
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 77
    reader = Reader(memoryview(frame), 9)
    found = share_fetch.decode_response(reader, version)
    reader.expect_end()
    assert (found.error_code, found.acquisition_lock_timeout_ms) == (0, 30_000)
    first, second = found.responses[0].partitions
    assert found.responses[0].topic_id == topic_id
    assert bytes(first.records) == FIRST + SECOND
    assert [item.delivery_count for item in first.acquired_records] == [1, 2]
    assert (second.error_code, second.acknowledge_error_code) == (6, 121)
    assert second.current_leader == share_fetch.LeaderIdAndEpoch(3, 4)
    assert [item.rack for item in found.node_endpoints] == [None, "rack"]
