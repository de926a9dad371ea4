"""DescribeLogDirs: sizes of a broker's partitions in the store, while their records move from the
WAL into objects.
"""

import asyncio

import pytest

from penstock.base.ids import Millis, ObjectId, Offset
from penstock.broker.handlers.describe_log_dirs import handle_describe_log_dirs
from penstock.broker.partition.storage_usage import PartitionUsage, usage_of
from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.objects import ObjectsImage
from penstock.controller.metadata.records import ObjectCommitted, RangeEntry
from penstock.protocol import apis
from penstock.protocol.gen import describe_log_dirs as wire
from penstock.stream.ports import ObjectRole
from tests.support.partition_harness import batch


def test_sizes_count_the_bytes_of_each_range_and_wal_objects_separately() -> None:
    objects = ObjectsImage()
    roles = [ObjectRole.WAL, ObjectRole.STREAM_SET, ObjectRole.STREAM]
    for at, role in enumerate(roles):
        part = RangeEntry(7, Offset(at), Offset(at + 1), 1, 10, Millis(0))
        objects.commit(ObjectCommitted(ObjectId(at), f"k{at}", role, 1_000, Millis(0), (part,)))
    entries = [
        LogEntry(Offset(at), Offset(at + 1), ObjectId(at), 1, 10 * (at + 1), Millis(0))
        for at in range(3)
    ]
    assert usage_of(entries, objects, 0) == PartitionUsage(60, 3, 10)
    assert usage_of(entries, objects, 5) == PartitionUsage(65, 3, 15)
    assert usage_of([], objects, 5) == PartitionUsage(5, 0, 5)
    assert usage_of(entries, objects, 0, 20) == PartitionUsage(60, 3, 10, 20)


async def described(broker, topics=None, version=4, details=False):
    """Return the only log dir in the broker's response."""
    request = wire.DescribeLogDirsRequest(
        None
        if topics is None
        else [wire.DescribableLogDirTopic(name, parts) for name, parts in topics],
        details=details,
    )
    context = broker.context(apis.DESCRIBE_LOG_DIRS, version, request)
    response = broker.decode_response(
        apis.DESCRIBE_LOG_DIRS, version, await handle_describe_log_dirs(broker, context)
    )
    assert response.error_code == 0
    (log_dir,) = response.results
    assert (log_dir.error_code, log_dir.log_dir) == (0, "memory:")
    assert (log_dir.total_bytes, log_dir.usable_bytes) == (-1, -1)
    return log_dir


async def sizes(broker, topics=None, version=4):
    """Return (size, objects, WAL bytes) by topic and partition."""
    log_dir = await described(broker, topics, version, details=True)
    parts = [(topic.name, part) for topic in log_dir.topics for part in topic.partitions]
    assert all((part.offset_lag, part.is_future_key) == (0, False) for _, part in parts)
    return {
        (name, part.partition_index): (part.partition_size, part.object_count, part.wal_bytes)
        for name, part in parts
    }


async def test_the_size_of_a_record_is_the_same_in_the_wal_and_in_objects(harness, pair):
    harness.topic("t")
    one, other = pair
    await harness.hand_over("t", one)
    assert await sizes(one) == {("t", 0): (0, 0, 0)}
    first, second = batch(b"a" * 100), batch(b"b" * 50)
    await one.produce("t", first)
    assert await sizes(one) == {("t", 0): (len(first), 0, len(first))}
    await harness.hand_over("t", other)
    assert await sizes(one) == {}
    assert await sizes(other) == {("t", 0): (len(first), 1, len(first))}
    await other.produce("t", second)
    total = len(first) + len(second)
    assert await sizes(other) == {("t", 0): (total, 1, total)}
    await other.storage.upload()
    assert await sizes(other) == {("t", 0): (total, 2, len(first))}


async def test_only_requested_partitions_are_listed_once_and_in_order(harness, pair):
    harness.topic("b", 2)
    harness.topic("a", 3)
    for topic, count in (("a", 3), ("b", 2)):
        for index in range(count):
            harness.lead(topic, pair[0], index)
    await pair[0].opened("a")
    everything = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert [*await sizes(pair[0])] == everything
    assert [*await sizes(pair[0], [("b", [1, 1]), ("a", [2]), ("b", [0, 9])])] == [
        ("a", 2),
        ("b", 0),
        ("b", 1),
    ]
    assert await sizes(pair[0], []) == {}
    assert await sizes(pair[0], [("a", []), ("none", [0])]) == {}
    assert await sizes(pair[1]) == {}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_every_version_contains_the_sizes(harness, pair, version):
    harness.topic("t")
    await harness.hand_over("t", pair[0])
    records = batch(b"a")
    await pair[0].produce("t", records)
    own = (0, len(records)) if version >= 2 else (-1, -1)
    assert await sizes(pair[0], version=version) == {("t", 0): (len(records), *own)}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_details_are_returned_only_on_request(harness, pair, version):
    """Some Kafka clients do not skip unknown tagged fields."""
    harness.topic("t")
    await harness.hand_over("t", pair[0])
    await pair[0].produce("t", batch(b"a"))
    (topic,) = (await described(pair[0], version=version)).topics
    (part,) = topic.partitions
    assert part.partition_size > 0
    assert (part.object_count, part.wal_bytes, part.shared_bytes) == (-1, -1, -1)


async def test_ranges_before_the_log_start_are_not_counted(harness, pair):
    harness.topic("t")
    one, other = pair
    await harness.hand_over("t", one)
    await one.produce("t", batch(b"a" * 1_000))
    await harness.hand_over("t", other)
    kept = batch(b"b")
    await other.produce("t", kept)
    errors = await other.partitions.trim_all([(await other.opened("t"), Offset(1))])
    assert errors == [None]
    assert await sizes(other) == {("t", 0): (len(kept), 0, len(kept))}


async def test_a_long_response_yields_to_other_tasks_and_tolerates_a_deletion(
    harness, pair, monkeypatch
):
    harness.topic("a")
    harness.topic("b")
    for name in ("a", "b"):
        await harness.hand_over(name, pair[0])
    monkeypatch.setattr("penstock.broker.handlers.describe_log_dirs._ENTRIES_PER_SLICE_COUNT", 1)
    request = wire.DescribeLogDirsRequest(None)
    context = pair[0].context(apis.DESCRIBE_LOG_DIRS, 4, request)
    pending = asyncio.create_task(handle_describe_log_dirs(pair[0], context))
    asyncio.get_running_loop().call_soon(harness.delete, "b")  # runs during the first pause
    response = pair[0].decode_response(apis.DESCRIBE_LOG_DIRS, 4, await pending)
    assert [topic.name for topic in response.results[0].topics] == ["a"]
