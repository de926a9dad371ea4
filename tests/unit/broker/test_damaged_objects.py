"""A broker serves topics with lost or damaged objects: it returns intact records, and errors for
the rest.
"""

import asyncio
from random import Random

import pytest
from structlog.testing import capture_logs

from penstock.broker.partition.partition import Partition
from penstock.objectstore.errors import Unavailable
from penstock.objectstore.faults import Fault, FaultyStore
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.errors import ObjectCorrupt, ObjectLost, ObjectMissing
from tests.support.partition_harness import NOW, batch
from tests.support.waiting import until

PARTITIONS = 3
ROUNDS = 4


class Damaged:
    """A topic of three partitions with four records each: one object per round. The broker that
    reads it has nothing in memory.
    """

    def __init__(self, harness, broker, keys):
        self.harness, self.broker, self.keys = harness, broker, keys

    async def lose(self, number):
        await self.harness.store.delete([self.keys[number]])

    async def spoil(self, number, value):
        """Change one byte of one record."""
        key = self.keys[number]
        data = bytearray(await self.harness.store.get(key))
        at = bytes(data).index(value)
        data[at] ^= 1
        await self.harness.store.put(key, bytes(data))

    async def read(self, index=0, offset=0):
        """Fetch as a consumer does, up to the end or an error. Return (values, error code)."""
        values = []
        while True:
            found = await self.broker.fetch("t", offset, index)
            if found.error or not found.records:
                return values, found.error
            values += [record.value for record in found.records if record.offset >= offset]
            offset = found.records[-1].offset + 1


def value(number, index):
    return b"record-%d-of-%d" % (number, index)


@pytest.fixture
async def damaged(harness):
    writer = await harness.broker(1)
    harness.topic("t", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        await writer.opened("t", index)
    before = {info.key async for info in harness.store.list("wal/")}
    keys = []
    for number in range(ROUNDS):
        await writer.start_produce(
            {
                ("t", index): batch(value(number, index), timestamp=NOW + number)
                for index in range(PARTITIONS)
            }
        )
        (key,) = {info.key async for info in harness.store.list("wal/")} - before
        before.add(key)
        keys.append(key)
    await writer.close()
    reader = await harness.broker(2)
    for index in range(PARTITIONS):
        await harness.hand_over("t", reader, index)
    return Damaged(harness, reader, keys)


@pytest.fixture
def at_once(monkeypatch):
    """Treat missing objects as lost without waiting."""
    monkeypatch.setattr("penstock.stream.read.damage.CERTAIN_S", 0.0)


async def test_a_read_returns_the_records_before_a_missing_object_and_then_fails(damaged):
    await damaged.lose(2)
    for index in range(PARTITIONS):
        assert await damaged.read(index) == (
            [value(0, index), value(1, index)],
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
        assert await damaged.read(index, 3) == ([value(3, index)], ErrorCode.NONE)
        assert await damaged.read(index, 2) == ([], ErrorCode.KAFKA_STORAGE_ERROR)


async def test_corrupt_bytes_are_an_error_only_for_their_partition(damaged):
    await damaged.spoil(2, value(2, 1))
    assert await damaged.read(0) == ([value(number, 0) for number in range(ROUNDS)], ErrorCode.NONE)
    assert await damaged.read(1) == ([value(0, 1), value(1, 1)], ErrorCode.CORRUPT_MESSAGE)
    assert await damaged.read(1, 3) == ([value(3, 1)], ErrorCode.NONE)
    assert await damaged.read(2) == ([value(number, 2) for number in range(ROUNDS)], ErrorCode.NONE)


async def test_other_partitions_of_the_same_fetch_are_served(damaged):
    await damaged.spoil(2, value(2, 1))
    response = await damaged.broker.fetch_all([("t", 0, 0), ("t", 1, 2), ("t", 2, 2)])
    parts = {part.partition_index: part for part in response.responses[0].partitions}
    assert [parts[index].error_code for index in range(PARTITIONS)] == [
        0,
        ErrorCode.CORRUPT_MESSAGE,
        0,
    ]
    assert [len(parts[index].records or b"") > 0 for index in range(PARTITIONS)] == [
        True,
        False,
        True,
    ]


async def test_a_read_fails_if_the_first_object_is_missing(damaged):
    await damaged.lose(0)
    assert await damaged.read(0) == ([], ErrorCode.KAFKA_STORAGE_ERROR)
    assert (await damaged.read(0, 1))[0] == [value(number, 0) for number in range(1, ROUNDS)]


async def test_consumers_raise_the_error_of_a_permanently_missing_object(damaged, at_once):
    await damaged.lose(1)
    assert await damaged.read(0) == ([value(0, 0)], ErrorCode.CORRUPT_MESSAGE)


async def test_a_missing_object_counts_as_lost_only_after_a_while(damaged, monkeypatch):
    await damaged.lose(1)
    assert (await damaged.read(0))[1] == ErrorCode.KAFKA_STORAGE_ERROR
    (found,) = damaged.broker.storage.damage.listed(asyncio.get_running_loop().time())
    found.first_s -= 10
    assert (await damaged.read(0))[1] == ErrorCode.CORRUPT_MESSAGE


async def test_an_object_that_reappears_is_read(damaged):
    data = await damaged.harness.store.get(damaged.keys[1])
    await damaged.lose(1)
    assert await damaged.read(0) == ([value(0, 0)], ErrorCode.KAFKA_STORAGE_ERROR)
    await damaged.harness.store.put(damaged.keys[1], data)
    assert await damaged.read(0) == ([value(number, 0) for number in range(ROUNDS)], ErrorCode.NONE)
    assert damaged.broker.storage.damage.listed(asyncio.get_running_loop().time()) == []


async def test_intact_cached_records_are_served(damaged):
    assert (await damaged.read(0))[1] == ErrorCode.NONE
    for number in range(ROUNDS):
        await damaged.lose(number)
    for index in range(PARTITIONS):
        assert await damaged.read(index) == (
            [value(number, index) for number in range(ROUNDS)],
            ErrorCode.NONE,
        )


async def test_damage_is_logged_at_most_once_a_minute_and_counted(damaged):
    await damaged.lose(1)
    await damaged.spoil(3, value(3, 2))
    with capture_logs() as logs:
        for _ in range(3):
            for index in range(PARTITIONS):
                await damaged.read(index)
                await damaged.read(index, 2)
    events = [(log["key"], log["kind"]) for log in logs if log["log_level"] in {"warning", "error"}]
    assert sorted(events) == [(damaged.keys[1], "gone"), (damaged.keys[3], "corrupt")]
    damage = damaged.broker.storage.damage
    assert damage.reads == {"gone": 9, "corrupt": 3}
    found = {
        item.key: (item.kind, item.count)
        for item in damage.listed(asyncio.get_running_loop().time())
    }
    assert found == {damaged.keys[1]: ("gone", 9), damaged.keys[3]: ("corrupt", 3)}


@pytest.mark.parametrize("fault", [Fault.FLIPPED_BIT, Fault.TRUNCATED])
async def test_a_single_corrupt_response_does_not_count_as_damage(damaged, fault):
    store = FaultyStore(damaged.harness.store, Random(1))
    damaged.broker.storage._objects._store = store
    store.script(fault)
    assert await damaged.read(1) == ([value(number, 1) for number in range(ROUNDS)], ErrorCode.NONE)
    assert damaged.broker.storage.damage.listed(asyncio.get_running_loop().time()) == []


async def test_a_failing_store_does_not_count_as_damage(damaged, monkeypatch):
    async def unavailable(key, start, length):
        raise Unavailable("get_range", key, "503")

    with monkeypatch.context() as patched:
        patched.setattr(damaged.harness.store, "get_range", unavailable)
        assert await damaged.read(0) == ([], ErrorCode.KAFKA_STORAGE_ERROR)
    assert damaged.broker.storage.damage.reads == {}
    assert await damaged.read(0) == ([value(number, 0) for number in range(ROUNDS)], ErrorCode.NONE)


async def test_timestamp_lookups_succeed_unless_the_result_is_in_a_damaged_object(damaged):
    await damaged.lose(1)
    await damaged.spoil(3, value(3, 1))
    assert (await damaged.broker.list_offsets("t", NOW)).offset == 0
    beside = await damaged.broker.list_offsets("t", NOW + 2)
    assert (beside.error_code, beside.offset) == (0, 2)
    gone = await damaged.broker.list_offsets("t", NOW + 1)
    assert (gone.error_code, gone.offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    corrupt = await damaged.broker.list_offsets("t", NOW + 3, index=1)
    assert (corrupt.error_code, corrupt.offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert (await damaged.broker.list_offsets("t", NOW + 3, index=2)).offset == 3
    assert [
        (await damaged.broker.list_offsets("t", timestamp)).offset for timestamp in (-1, -2)
    ] == [ROUNDS, 0]


async def test_a_partition_opens_despite_damage_before_its_checkpoint(damaged):
    await damaged.lose(1)
    third = await damaged.harness.broker(3)
    damaged.harness.lead("t", third)
    assert isinstance(await third.opened("t"), Partition)
    assert (await third.produce("t", batch(b"new"))).base_offset == ROUNDS


async def test_stream_reads_raise_the_error(damaged, at_once):
    await damaged.lose(1)
    await damaged.spoil(2, value(2, 0))
    stream_id = damaged.harness.record("t").stream_ids[1]
    storage = damaged.broker.storage
    with pytest.raises(ObjectLost, match=damaged.keys[1]):
        await storage.reader.read(stream_id, 1, ROUNDS, 1 << 20)
    with pytest.raises(ObjectCorrupt, match=damaged.keys[2]):
        await storage.reader.read(stream_id, 2, ROUNDS, 1 << 20)
    assert issubclass(ObjectLost, ObjectMissing)


class Crashed:
    """A leader that crashed with records after its last checkpoint, and the broker that has to open
    its partitions.
    """

    def __init__(self, harness, writer, next_leader, keys):
        self.harness, self.writer, self.next_leader, self.keys = harness, writer, next_leader, keys


@pytest.fixture
async def crashed(harness):
    writer = await harness.broker(1)
    harness.topic("t", partitions=2)
    keys = []
    for index in range(2):
        await writer.opened("t", index)
        before = {info.key async for info in harness.store.list("wal/")}
        await writer.produce("t", batch(value(0, index)), index=index)
        keys += {info.key async for info in harness.store.list("wal/")} - before
    next_leader = await harness.broker(2)
    await writer.crash()
    return Crashed(harness, writer, next_leader, keys)


async def test_a_partition_that_fails_to_open_is_reported_with_the_reason(crashed):
    harness, next_leader = crashed.harness, crashed.next_leader
    lost = crashed.keys[0]
    await harness.fail_over(crashed.writer, next_leader)
    data = await harness.store.get(lost)
    await harness.store.delete([lost])
    for index in range(2):
        harness.lead("t", next_leader, index)
    assert isinstance(await next_leader.opened("t", 1), Partition), "the one beside it opens"
    await until(
        lambda: next_leader.partitions.failing() and next_leader.partitions.failing()[0].tries >= 3
    )
    (failing,) = next_leader.partitions.failing()
    assert (failing.topic_id, failing.partition) == (harness.record("t").topic_id, 0)
    assert failing.error.startswith(f"ObjectMissing: object {lost} is gone from the store")
    assert next_leader.partitions.states().failing == 1
    assert next_leader.storage.damage.reads["gone"] >= 1

    await harness.store.put(lost, data)
    assert isinstance(await next_leader.opened("t", 0), Partition)
    assert next_leader.partitions.failing() == []
    assert await next_leader.values("t", 0) == [value(0, 0)]
