"""Log compaction keeps the newest record of each key and everything else that consumers need."""

import asyncio
import struct
from random import Random

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from penstock.base.ids import Millis, Offset
from penstock.broker.background import cleaner as cleaner_duty
from penstock.broker.background.cleaner import CleanerDuty
from penstock.broker.handlers.topics.forks import PointRefusal, find_fork_points
from penstock.broker.partition.cleaning import CleaningPolicy, DirtyPart, is_due
from penstock.broker.partition.fork_point import WantedPoint
from penstock.controller.api import messages as m
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import CRC_AT, CRC_START, HEADER_BYTES, iter_headers
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.cleaning.cleaner import CleanerConfig, CleaningTask, LogCleaner
from penstock.stream.cleaning.key_map import ENTRY_BYTES_MAX
from penstock.stream.compaction.compactor import Compactor
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.read.object_reader import ObjectReader
from tests.support.partition_harness import NOW

DAY_MS = 86_400_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def keyed(*pairs, timestamp=NOW, **options):
    """Return a batch of (key, value) pairs; a value of None is a tombstone."""
    records = [Record(at, timestamp, key, value) for at, (key, value) in enumerate(pairs)]
    return memoryview(encode_batch(records, **options))


def cleaner_of(broker, **limits):
    return duty_of(broker, log_cleaner_of(broker, **limits))


def log_cleaner_of(broker, forget=None, **limits):
    return LogCleaner(
        broker.harness.store,
        broker.metadata,
        ObjectReader(broker.harness.store, BlockCache(1 << 20)),
        broker.me,
        owned=broker.storage.open_handles,
        turn=asyncio.Lock(),
        forget=forget or broker.storage.forget_cached,
        now_ms=broker.now_ms,
        config=CleanerConfig(**limits),
    )


def duty_of(broker, cleaner):
    return CleanerDuty(
        lambda: broker.image,
        broker.partitions,
        broker.partitions.checkpoint_durably,
        broker.metadata,
        cleaner.clean,
        upload=broker.storage.upload,
        buffered_bytes=broker.storage.buffered_bytes,
        now_ms=broker.now_ms,
        interval_s=1,
        rng=Random(1),
    )


class Log:
    """One partition led by two brokers in turn: a change of leaders commits its records."""

    def __init__(self, harness, brokers):
        self.harness, self.brokers = harness, brokers
        self.leads = 0

    @property
    def leader(self):
        return self.brokers[self.leads % 2]

    async def produce(self, *batches):
        for data in batches:
            response = await self.leader.produce("t", data)
            assert response.error_code == 0, response

    async def commit(self):
        """Upload and commit everything by changing the leader."""
        self.leads += 1
        await self.harness.hand_over("t", self.leader)

    async def upload(self):
        """Upload everything without changing the leader, which keeps the records in memory."""
        await self.leader.storage.upload()

    async def clean(self, **limits):
        await self.commit()
        duty = cleaner_of(self.leader, **limits)
        await duty.check()
        assert not duty.failures
        return duty

    async def records(self, **options):
        """Return all records, in as many fetches as necessary. The batches must have no gaps
        between them.
        """
        found, offset = [], 0
        while True:
            response = (await self.leader.fetch("t", offset, **options)).raw
            assert response.error_code == 0
            if not response.records:
                assert offset == response.high_watermark
                return found
            data = memoryview(response.records)
            for at, header in iter_headers(data):
                assert header.base_offset <= offset, "a hole"
                for record in decode_records(data[at : at + header.size_bytes]):
                    if not header.is_control and record.offset >= offset:
                        found.append(record)
                offset = header.next_offset

    async def headers(self):
        """Return the headers of all batches."""
        found, offset = [], 0
        while data := (await self.leader.fetch("t", offset)).raw.records:
            found += [header for _, header in iter_headers(data) if header.next_offset > offset]
            offset = found[-1].next_offset
        return found

    async def pairs(self):
        return [(record.offset, record.key, record.value) for record in await self.records()]


@pytest.fixture
async def log(harness, pair):
    harness.topic("t", **COMPACT)
    await harness.hand_over("t", pair[0])
    return Log(harness, pair)


# --- kept records ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Compression))
async def test_the_newest_record_of_each_key_is_kept(log, codec):
    await log.produce(
        keyed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), compression=codec, timestamp=NOW - 5),
        keyed((b"c", b"1"), compression=codec),
        keyed((b"b", b"2"), (b"d", b"1"), compression=codec),
    )
    duty = await log.clean()
    assert duty.removed_records == 2
    assert await log.pairs() == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"d", b"1"),
    ]
    assert [record.timestamp_ms for record in await log.records()] == [NOW - 5, NOW, NOW, NOW]


async def test_a_clean_log_is_not_rewritten(log):
    await log.produce(keyed((b"a", b"1"), (b"b", b"1")))
    duty = await log.clean()
    assert (duty.passes, duty.removed_records, duty.written_bytes) == (1, 0, 0)
    again = await log.clean()
    assert again.passes == 0, "the next leader learns that the log is clean"


async def test_a_long_gap_becomes_one_batch_without_records(log):
    await log.produce(*(keyed((b"a", b"%d" % at)) for at in range(50)))
    await log.clean()
    assert await log.pairs() == [(49, b"a", b"49")]
    found = (await log.leader.fetch("t", 7)).raw
    headers = [header for _, header in iter_headers(found.records)]
    assert [(h.base_offset, h.next_offset, h.record_count) for h in headers] == [
        (0, 49, 0),
        (49, 50, 1),
    ]


async def test_gaps_do_not_make_a_clean_log_dirty(log, harness):
    await log.produce(*(keyed((b"%d" % (at % 20), b"")) for at in range(60)))
    await log.produce(*(keyed((b"%d" % at, b"")) for at in range(0, 20, 2)))
    await log.clean()
    partition = await log.leader.opened("t")
    entries = harness.image.streams.known(partition.log.data.stream_id).entries
    assert partition.log.cleaned.size_bytes == sum(entry.size_bytes for entry in entries)


async def test_every_offset_can_be_fetched_after_cleaning(log):
    await log.produce(*(keyed((b"%d" % (at % 3), b"x"), (b"y", b"x")) for at in range(9)))
    await log.clean()
    records = await log.records()
    for offset in range(18):
        found = [r.offset for r in (await log.leader.fetch("t", offset)).records]
        assert [at for at in found if at >= offset] == [
            r.offset for r in records if r.offset >= offset
        ]


async def test_a_block_without_remaining_records_is_not_read_again(log):
    sizes = []
    for value in (b"1", b"2", b"3"):
        batches = [keyed((b"a", value * 500)), keyed((b"b", value * 500))]
        sizes.append(sum(map(len, batches)))
        await log.produce(*batches)
        await log.commit()
    epochs = [header.partition_leader_epoch for header in await log.headers()]
    assert len(set(epochs)) == 3
    duty = await log.clean()
    assert duty.read_bytes == sum(sizes) + sizes[2]
    assert duty.removed_records == 4
    assert await log.pairs() == [(4, b"a", b"3" * 500), (5, b"b", b"3" * 500)]
    left = [(h.base_offset, h.next_offset, h.record_count) for h in await log.headers()]
    assert left == [(0, 4, 0), (4, 5, 1), (5, 6, 1)]
    assert (await log.headers())[0].partition_leader_epoch == epochs[3]


async def test_a_large_range_is_read_in_parts(log, monkeypatch):
    value = b"x" * 700_000  # one block each
    await log.produce(*(keyed((key, value)) for key in (b"a", b"b", b"a", b"c")))
    real, counts = ObjectReader.load_uncached, []

    async def load_uncached(self, pieces):
        counts.append(len(pieces))
        return await real(self, pieces)

    monkeypatch.setattr(ObjectReader, "load_uncached", load_uncached)
    await log.upload()
    duty = cleaner_of(log.leader, group_bytes_max=1_500_000)
    await duty.check()
    assert not duty.failures
    assert counts == [2, 2, 1, 2], "twice in two parts, the second time without the first block"
    assert duty.removed_records == 1
    await log.commit()  # the next leader has nothing in memory
    assert [offset for offset, _, _ in await log.pairs()] == [1, 2, 3]
    assert [header.base_offset for header in await log.headers()] == [0, 1, 2, 3]


async def test_records_without_a_key_are_deleted(log, harness):
    harness.configure("t", "cleanup.policy", "delete")
    await log.produce(keyed((b"a", b"1"), (None, b"2"), (None, b"3")))
    harness.configure("t", "cleanup.policy", "compact")
    await log.clean()
    assert await log.pairs() == [(0, b"a", b"1")]
    refused = await log.leader.produce("t", keyed((None, b"4")))
    assert refused.error_code == ErrorCode.INVALID_RECORD


async def test_repeated_offset_deltas_lose_no_key(log):
    """Kafka accepts them in uncompressed batches."""
    batch = bytearray(keyed((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")))
    record_bytes = (len(batch) - HEADER_BYTES) // 4
    for number, delta in enumerate((0, 0, 1, 2)):
        batch[HEADER_BYTES + number * record_bytes + 3] = delta << 1
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    await log.produce(memoryview(batch), keyed((b"a", b"5")))
    assert [key for _, key, _ in await log.pairs()] == [b"a", b"c", b"d", b"a"]
    await log.clean()
    assert {(1, b"c", b"3"), (2, b"d", b"4"), (4, b"a", b"5")} <= set(await log.pairs())


async def test_more_keys_than_the_map_holds_take_several_passes(log):
    for _ in range(2):
        await log.produce(*(keyed((b"%04d" % at, b"x" * 9)) for at in range(20)))
    limits = {"key_map_bytes_max": ENTRY_BYTES_MAX * 7}
    removed = [(await log.clean(**limits)).removed_records for _ in range(6)]
    assert sum(removed) == 20
    assert len([count for count in removed if count]) > 2
    assert [offset for offset, _, _ in await log.pairs()] == list(range(20, 40))


async def test_a_batch_with_more_keys_than_the_map_holds_is_cleaned(log):
    for _ in range(2):
        await log.produce(keyed(*((b"%04d" % at, b"x") for at in range(20))))
    removed = [(await log.clean(key_map_bytes_max=ENTRY_BYTES_MAX)).removed_records for _ in "ab"]
    assert sum(removed) == 20


async def test_long_keys_are_distinguished(log):
    long = [b"k" * 40 + b"%d" % at for at in range(3)]
    await log.produce(*(keyed((key, b"1"), (key[:30], b"1")) for key in long * 2))
    await log.clean()
    assert [(offset, key) for offset, key, _ in await log.pairs()] == [
        (6, long[0]),
        (8, long[1]),
        (10, long[2]),
        (11, b"k" * 30),
    ]


async def test_time_lookups_skip_deleted_records(log):
    await log.produce(
        keyed((b"a", b"1"), timestamp=NOW + 1),
        keyed((b"b", b"1"), timestamp=NOW + 2),
        keyed((b"a", b"2"), timestamp=NOW + 3),
    )
    await log.clean()
    assert (await log.leader.list_offsets("t", NOW)).offset == 1
    assert (await log.leader.list_offsets("t", -3)).offset == 2


# --- tombstones -----------------------------------------------------------------------------------


async def test_a_tombstone_is_deleted_after_its_retention(log, harness):
    await log.produce(keyed((b"a", b"1"), (b"b", b"1")), keyed((b"a", None), (b"c", b"1")))
    await log.clean()
    assert await log.pairs() == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    harness.now_ms += DAY_MS - 1
    await log.produce(keyed((b"d", b"1"), timestamp=NOW + 7))
    await log.clean()
    assert (2, b"a", None) in await log.pairs()
    harness.now_ms += 1
    await log.produce(keyed((b"d", b"2"), timestamp=NOW + 8))
    await log.clean()
    assert await log.pairs() == [(1, b"b", b"1"), (3, b"c", b"1"), (5, b"d", b"2")]
    assert [record.timestamp_ms for record in await log.records()] == [NOW, NOW, NOW + 8]


async def test_tombstone_retention_starts_at_the_first_compaction(log, harness):
    await log.produce(keyed((b"a", b"1")), keyed((b"a", None)))
    harness.now_ms += 30 * DAY_MS
    await log.clean()
    assert await log.pairs() == [(1, b"a", None)]
    assert [record.timestamp_ms for record in await log.records()] == [NOW]


async def test_tombstones_can_be_kept_forever(log, harness):
    harness.configure("t", "delete.retention.ms", str(2**63 - 1))
    await log.produce(keyed((b"a", b"1")), keyed((b"a", None)))
    await log.clean()
    harness.now_ms += 30 * DAY_MS
    await log.produce(keyed((b"b", b"1"), timestamp=NOW + 1))
    await log.clean()
    assert await log.pairs() == [(1, b"a", None), (2, b"b", b"1")]
    assert [record.timestamp_ms for record in await log.records()] == [NOW, NOW + 1]


async def test_a_tombstone_outlives_deleted_records_that_can_be_restored(log, harness):
    """Otherwise a fork with these records would contain the key."""
    harness.configure("t", "delete.retention.ms", "0")
    harness.configure("t", "penstock.delete.grace.ms", "9")
    await log.produce(keyed((b"k", b"1"), (b"a", b"1")))
    partition = await log.leader.opened("t")
    assert await log.leader.partitions.trim_all([(partition, Offset(2))], keep=True) == [None]
    await log.produce(keyed((b"k", None)))
    await log.clean()
    harness.now_ms += 8
    await log.produce(keyed((b"b", b"1")))
    await log.clean()
    assert await log.leader.values_from("t", 2) == [None, b"1"]
    topic_id = harness.image.topics.by_name("t").topic_id
    point = (await find_fork_points(log.leader, [("t", {0: WantedPoint()})]))[0][0]
    fork = m.TopicFork(source_topic_id=topic_id, partitions=[point], with_kept=True)
    harness.topic("f", fork=fork)
    await harness.hand_over("f", log.brokers[1])
    assert await log.brokers[1].values_from("f", 0) == [b"1", b"1", None, b"1"]
    harness.now_ms += 1
    await log.produce(keyed((b"c", b"1")))
    await log.clean()
    assert await log.leader.values_from("t", 2) == [b"1", b"1"]


@pytest.mark.parametrize("group_bytes_max", [1, 8 << 20])
async def test_records_deleted_during_a_pass_do_not_outlive_their_tombstone(
    log, harness, monkeypatch, group_bytes_max
):
    """The pass has begun before the records can be restored."""
    harness.configure("t", "delete.retention.ms", "0")
    harness.configure("t", "penstock.delete.grace.ms", "9")
    await log.produce(keyed((b"k", b"1"), (b"a", b"1")))
    await log.upload()
    await log.produce(keyed((b"k", None)))
    await log.commit()
    partition = await log.leader.opened("t")
    cleaner = log_cleaner_of(log.leader, group_bytes_max=group_bytes_max)
    prepare = log.leader.metadata.prepare_objects

    async def prepare_after_a_deletion(count):
        await log.leader.partitions.trim_all([(partition, Offset(2))], keep=True)
        return await prepare(count)

    with monkeypatch.context() as patch:
        patch.setattr(log.leader.metadata, "prepare_objects", prepare_after_a_deletion)
        duty = duty_of(log.leader, cleaner)
        await duty.check()
    assert duty.failures == 1
    for later_ms in (1, 7):
        harness.now_ms += later_ms
        await log.produce(keyed((b"b", b"1")))
        await log.clean()
        assert await log.leader.values_from("t", 2) == [None, b"1"]
        await log.commit()
    harness.now_ms += 2
    await log.produce(keyed((b"c", b"1")))
    await log.clean()
    assert await log.leader.values_from("t", 2) == [b"1", b"1"]


async def test_deleted_records_do_not_count_as_clean(log, harness):
    """Otherwise the log would not be due before it is as large as it was."""
    harness.configure("t", "min.cleanable.dirty.ratio", "0.5")
    await log.produce(keyed((b"a", bytes(10_000))))
    await log.clean()
    await log.produce(keyed((b"b", b"1")), keyed((b"b", b"2")))
    partition = await log.leader.opened("t")
    assert await log.leader.partitions.trim_all([(partition, Offset(1))], keep=False) == [None]
    await log.clean()
    assert await log.leader.values_from("t", 1) == [b"2"]


# --- records that are not uploaded yet ------------------------------------------------------------


@pytest.mark.parametrize(
    "configs",
    [
        {"min.cleanable.dirty.ratio": "0.5"},
        {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"},
        {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}
        | {"min.compaction.lag.ms": "1000"},
    ],
    ids=["ratio", "max lag", "min lag"],
)
async def test_a_log_is_uploaded_when_it_is_due_for_compaction(log, harness, configs):
    for name, value in configs.items():
        harness.configure("t", name, value)
    await log.produce(*(keyed((b"a", b"%d" % at), timestamp=NOW - 1) for at in range(3)))
    duty = cleaner_of(log.leader)
    await duty.check()
    if "max.compaction.lag.ms" in configs:
        assert (duty.uploads, duty.passes) == (0, 0), "not due yet"
        harness.now_ms += 1_001
        await duty.check()
    assert (duty.uploads, duty.passes, duty.removed_records) == (1, 1, 2)
    for _ in range(3):
        harness.now_ms += DAY_MS
        await duty.check()
    assert duty.uploads == 1, "an idle log costs nothing"


async def test_one_upload_serves_all_logs_due_for_compaction(log, harness, monkeypatch):
    monkeypatch.setattr(cleaner_duty, "UPLOAD_INTERVAL_S", 3_600)
    leader = log.leader
    topics = ["t", "u", "v"]
    for topic in topics[1:]:
        harness.topic(topic, **COMPACT)
        await harness.hand_over(topic, leader)
    for topic in topics:
        for value in (b"1", b"2"):
            assert (await leader.produce(topic, keyed((b"a", value)))).error_code == 0
    duty = cleaner_of(leader)
    await duty.check()
    assert (duty.uploads, duty.passes, duty.removed_records) == (1, 3, 3)
    await log.produce(keyed((b"a", b"3")))
    await duty.check()
    assert (duty.uploads, duty.passes) == (1, 3), "the next upload has to wait"
    await log.upload()
    await duty.check()
    assert (duty.uploads, duty.passes) == (1, 4)


async def test_only_cleanable_ranges_are_uploaded(log, harness):
    """Records after an open transaction and logs without compaction are not uploaded."""
    harness.topic("plain")
    await harness.hand_over("plain", log.leader)
    await log.leader.produce("plain", keyed((b"a", b"1")))
    await log.produce(transactional(7, 0, (b"a", b"1")), keyed((b"a", b"2")))
    duty = cleaner_of(log.leader)
    await duty.check()
    assert (duty.uploads, duty.passes) == (0, 0)


# --- young and undecided records ------------------------------------------------------------------


@pytest.mark.parametrize(("later_ms", "count"), [(0, 2), (999, 2), (1_000, 1)])
async def test_young_records_are_kept(log, harness, later_ms, count):
    harness.configure("t", "min.compaction.lag.ms", "1000")
    await log.produce(keyed((b"a", b"1"), timestamp=NOW - 1_000), keyed((b"a", b"2")))
    await log.commit()
    partition = await log.leader.opened("t")
    partition.log.dirty_since_ms = Millis(NOW - 1_000)
    harness.now_ms += later_ms
    duty = cleaner_of(log.leader)
    await duty.check()
    assert duty.passes == 1
    assert await log.pairs() == [(0, b"a", b"1"), (1, b"a", b"2")][-count:]


async def test_records_without_timestamps_have_the_age_of_their_object(log, harness):
    harness.configure("t", "min.compaction.lag.ms", "1000")
    await log.produce(keyed((b"a", b"1"), timestamp=-1), keyed((b"a", b"2"), timestamp=-1))
    await log.commit()
    partition = await log.leader.opened("t")
    partition.log.dirty_since_ms = Millis(NOW - 1_000)
    await cleaner_of(log.leader).check()
    assert len(await log.pairs()) == 2
    harness.now_ms += 2_000
    await cleaner_of(log.leader).check()
    assert await log.pairs() == [(1, b"a", b"2")]


def transactional(pid, sequence, *pairs):
    return keyed(
        *pairs, producer_id=pid, producer_epoch=0, base_sequence=sequence, attributes=1 << 4
    )


async def test_records_of_aborted_transactions_are_deleted_and_the_marker_is_kept(log):
    await log.produce(keyed((b"a", b"old")), transactional(7, 0, (b"a", b"new"), (b"b", b"1")))
    assert await log.leader.mark("t", 7, commit=False) == 0
    await log.produce(transactional(7, 2, (b"b", b"2")))
    assert await log.leader.mark("t", 7, commit=True) == 0
    await log.clean()
    assert await log.pairs() == [(0, b"a", b"old"), (4, b"b", b"2")]
    assert await log.leader.committed("t") == [b"old", b"2"]


async def test_nothing_after_an_open_transaction_is_cleaned(log):
    await log.produce(keyed((b"a", b"1")), keyed((b"a", b"2")), transactional(7, 0, (b"a", b"3")))
    await log.produce(keyed((b"b", b"1")), keyed((b"b", b"2")))
    await log.clean()
    assert [offset for offset, _, _ in await log.pairs()] == [1, 2, 3, 4]
    assert await log.leader.mark("t", 7, commit=True) == 0
    await log.clean()
    assert [offset for offset, _, _ in await log.pairs()] == [2, 4]


@pytest.mark.parametrize("young_from_ms", [None, Millis(NOW - 1)])
async def test_the_last_batch_of_the_clean_part_is_unchanged(log, young_from_ms):
    """A tombstone gets its delete horizon in the pass that cleans it. Here the pass stops before
    it, because its transaction is open or because it is too young.
    """
    await log.produce(*(keyed((b"a", value), timestamp=NOW - 2) for value in (b"1", b"2")))
    await log.produce(transactional(7, 0, (b"b", None)))
    await log.upload()  # a single range
    partition = await log.leader.opened("t")
    end = Offset(2) if young_from_ms is None else partition.high_watermark
    task = CleaningTask(
        stream_id=partition.log.data.stream_id,
        start=Offset(0),
        dirty_from=Offset(0),
        end=end,
        young_from_ms=young_from_ms,
        tombstones_kept_ms=1,
    )
    report = await log_cleaner_of(log.leader).clean(task)
    assert (report.clean_end, report.removed_records) == (2, 1)
    assert {header.delete_horizon_ms for header in await log.headers()} == {None}


async def test_a_commit_marker_is_deleted_after_all_records_of_its_transaction(log, harness):
    async def marker_count():
        found = (await log.leader.fetch("t", 0)).raw
        return sum(header.is_control for _, header in iter_headers(found.records))

    await log.produce(transactional(7, 0, (b"a", b"1")))
    assert await log.leader.mark("t", 7, commit=True) == 0
    await log.produce(keyed((b"a", b"2")))
    await log.clean()
    assert await marker_count() == 1
    for _ in range(2):
        await log.produce(keyed((b"z", b"1")))
        await log.clean()
        harness.now_ms += DAY_MS
    assert await marker_count() == 0
    assert await log.leader.committed("t") == [b"2", b"1"]


async def test_a_block_with_a_transaction_is_read_again(log):
    """The marker gets its delete horizon in the pass after the one that removes the last record of
    its transaction.
    """
    await log.produce(transactional(7, 0, (b"a", b"1")))
    await log.commit()
    assert await log.leader.mark("t", 7, commit=True) == 0
    await log.produce(keyed((b"a", b"2")))
    assert (await log.clean()).removed_records == 1
    markers = [header for header in await log.headers() if header.is_control]
    assert [marker.delete_horizon_ms for marker in markers] == [None]


# --- producers ------------------------------------------------------------------------------------


async def test_producer_state_is_kept_after_compaction_deletes_its_records(log, harness):
    def idempotent(sequence, value):
        return keyed((b"a", value), producer_id=9, producer_epoch=0, base_sequence=sequence)

    await log.produce(*(idempotent(at, b"%d" % at) for at in range(3)), keyed((b"a", b"x")))
    await log.upload()
    duty = cleaner_of(log.leader)
    await duty.check()
    assert (duty.passes, duty.removed_records) == (1, 3)
    dead = log.leader
    await dead.crash()
    log.leads += 1
    await harness.fail_over(dead, log.leader)
    await harness.hand_over("t", log.leader)
    repeated = await log.leader.produce("t", idempotent(2, b"2"))
    assert (repeated.error_code, repeated.base_offset) == (0, 2)
    assert (await log.leader.produce("t", idempotent(3, b"3"))).base_offset == 4
    log.brokers.remove(dead)
    log.leads = 0


# --- faults ---------------------------------------------------------------------------------------


async def test_a_compaction_is_discarded_if_the_broker_closes_the_log(log, harness):
    await log.produce(keyed((b"a", b"1")), keyed((b"a", b"2")))
    await log.commit()
    duty = cleaner_of(log.leader)
    real = harness.prepare_objects

    async def move_away(request, *, timeout_s=0):
        prepared = await real(request, timeout_s=timeout_s)
        await log.commit()
        return prepared

    harness.prepare_objects = move_away
    await duty.check()
    assert (duty.passes, duty.failures) == (0, 1)
    harness.prepare_objects = real
    assert [offset for offset, _, _ in await log.pairs()] == [0, 1]


async def test_a_damaged_object_stops_the_pass_and_suspends_the_log(log, harness):
    await log.produce(keyed((b"a", b"1")), keyed((b"a", b"2")))
    await log.commit()
    partition = await log.leader.opened("t")
    (entry, *_) = harness.image.streams.known(partition.log.data.stream_id).entries
    (source,) = log.leader.metadata.objects(partition.log.data.stream_id, 0, 1, 1)
    body = bytearray(await harness.store.get(source.key))
    body[60] ^= 1
    await harness.store.put(source.key, bytes(body))
    duty = cleaner_of(log.leader)
    await duty.check()
    await duty.check()
    assert (duty.passes, duty.failures) == (0, 1), "it is suspended"
    assert harness.image.streams.known(partition.log.data.stream_id).entries[0] == entry


async def test_a_corrupt_batch_in_a_sound_object_stops_the_pass(log, harness, monkeypatch):
    await log.produce(keyed((b"a", b"1")), keyed((b"a", b"2")))
    await log.commit()
    stream_id = (await log.leader.opened("t")).log.data.stream_id
    entries = list(harness.image.streams.known(stream_id).entries)
    (source, *_) = log.leader.metadata.objects(stream_id, 0, 2, 9)
    monkeypatch.setattr("penstock.stream.cleaning.batches.check_crc", lambda batch: False)
    with capture_logs() as events:
        await cleaner_of(log.leader).check()
    (event,) = (item for item in events if item["event"] == "log_cleaning_suspended")
    assert source.key in event["error"], "the object is named"
    assert "the batch at offset 0" in event["error"]
    assert list(harness.image.streams.known(stream_id).entries) == entries, "the data stay"


async def test_a_lost_commit_response_loses_no_records(log, harness):
    await log.produce(keyed((b"a", b"1")), keyed((b"a", b"2")))
    await log.commit()
    real = harness.commit

    async def lost(request, *, timeout_s=0):
        await real(request)
        raise TimeoutError("no response")

    harness.commit = lost
    duty = cleaner_of(log.leader)
    await duty.check()
    assert duty.failures == 1
    harness.commit = real
    await duty.check()
    assert await log.pairs() == [(1, b"a", b"2")]


async def test_readers_do_not_get_compacted_records_from_memory(log):
    """Otherwise a value in memory could outlive its tombstone, and a reader would miss the
    deletion.
    """
    for value in (b"1", None, b"3"):
        await log.produce(keyed((b"a", value)), keyed((b"b", value)))
        await log.upload()
    duty = cleaner_of(log.leader)
    await duty.check()
    assert duty.removed_records == 4
    assert await log.pairs() == [(4, b"a", b"3"), (5, b"b", b"3")]


async def test_object_compaction_does_not_write_back_what_is_still_in_memory(log, harness):
    for number in range(3):
        await log.produce(keyed((b"a", b"%d" % number)))
        await log.upload()
    broker = log.leader
    # As an external job does it, without updating any cache.
    cleaner = log_cleaner_of(broker, lambda *_: None, group_bytes_max=1)
    await duty_of(broker, cleaner).check()
    stream_id = (await broker.opened("t")).log.data.stream_id
    assert broker.storage.cached_entries(stream_id, 0, 1) is not None
    compactor = Compactor(
        harness.store,
        broker.metadata,
        ObjectReader(harness.store, BlockCache(1 << 20)),
        broker.me,
        owned=broker.storage.open_handles,
        now_ms=broker.now_ms,
        cached=broker.storage.cached_entries,
        config=CompactionConfig(small_count_min=2),
    )
    while await compactor.run_round():
        pass
    (entry,) = harness.image.streams.known(stream_id).entries
    assert (entry.start_offset, entry.end_offset, entry.record_count) == (0, 3, 1)
    await log.commit()
    assert await log.pairs() == [(2, b"a", b"2")]


# --- scheduling -----------------------------------------------------------------------------------


POLICY = CleaningPolicy(0.5, 0, 10_000, DAY_MS)


@pytest.mark.parametrize(
    ("dirty_bytes", "waited_ms", "policy", "expected"),
    [
        (0, 99_999, POLICY, False),
        (50, 0, POLICY, False),
        (51, 0, POLICY, True),
        (1, 10_000, POLICY, False),
        (1, 10_001, POLICY, True),
        (90, 99, CleaningPolicy(0.5, 100, 10_000, DAY_MS), False),
        (90, 100, CleaningPolicy(0.5, 100, 10_000, DAY_MS), True),
    ],
)
def test_a_log_is_due_when_it_is_dirty_enough_or_has_waited_too_long(
    dirty_bytes, waited_ms, policy, expected
):
    dirty = DirtyPart(100, dirty_bytes, Millis(NOW - waited_ms))
    assert is_due(dirty, policy, Millis(NOW)) is expected


def test_the_compaction_policy_comes_from_topic_configs():
    assert CleaningPolicy.from_configs({}) is None
    assert CleaningPolicy.from_configs({"cleanup.policy": "delete"}) is None
    found = CleaningPolicy.from_configs(
        {"cleanup.policy": "compact, delete", "delete.retention.ms": "7"}
    )
    assert found == CleaningPolicy(0.5, 0, 2**63 - 1, 7)


# --- random histories -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
async def test_random_histories_keep_the_newest_record_of_each_key(log, harness, seed):
    rng = Random(seed)
    written: dict[int, tuple[bytes, bytes | None]] = {}
    decided: dict[bytes, tuple[int, bytes | None]] = {}
    sequence, offset = 0, 0
    for _ in range(rng.randrange(5, 60)):
        pairs = [
            (b"%d" % rng.randrange(6), rng.choice([None, b"v%d" % offset, b"w"]))
            for _ in range(rng.choice([1, 1, 4]))
        ]
        action = rng.random()
        codec = rng.choice(list(Compression))
        if action < 0.6:
            await log.produce(keyed(*pairs, compression=codec))
            outcome = True
        else:
            data = transactional(5, sequence, *pairs)
            sequence += len(pairs)
            await log.produce(data)
            outcome = rng.random() < 0.5
            assert await log.leader.mark("t", 5, commit=outcome) == 0
        for at, pair in enumerate(pairs):
            written[offset + at] = pair
            if outcome:
                decided[pair[0]] = (offset + at, pair[1])
        offset += len(pairs) + (action >= 0.6)
        if rng.random() < 0.3:
            limits = {"key_map_bytes_max": ENTRY_BYTES_MAX * rng.choice([2, 100])}
            await log.clean(group_bytes_max=rng.choice([1, 500, 1 << 20]), **limits)
            harness.now_ms += rng.choice([0, DAY_MS])
    await log.clean()
    await log.clean()
    records = await log.records(isolation_level=0)
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for record in records:
        assert written[record.offset] == (record.key, record.value)
        assert record.timestamp_ms == NOW
        assert record.key not in newest, "an older record of the key is left"
        newest[record.key] = (record.offset, record.value)
    for key, (at, value) in decided.items():
        if value is None:
            assert newest.get(key) in {None, (at, None)}
        else:
            assert newest[key] == (at, value)
    values = [value for _, value in sorted(newest.values())]
    assert await log.leader.committed("t") == values


async def test_a_fork_point_is_not_inside_a_compacted_range(log, harness):
    """The leader has the old batches in memory; in the objects, they are a gap."""
    times = [NOW + number for number in range(10)]
    await log.produce(
        *[keyed((b"k", b"%d" % at), timestamp=times[at]) for at in range(9)],
        keyed((b"x", b"y"), timestamp=times[9]),
    )
    await log.upload()
    duty = cleaner_of(log.leader)
    await duty.check()
    assert duty.removed_records == 8
    await log.produce(keyed((b"k", b"9"), timestamp=NOW + 20))
    topic_id = harness.image.topics.by_name("t").topic_id

    async def point_at(**requested):
        return (await find_fork_points(log.leader, [("t", {0: WantedPoint(**requested)})]))[0][0]

    for requested in ({"offset": 9}, {"offset": 1}, {"timestamp_ms": times[9]}):
        refused = await point_at(**requested)
        assert isinstance(refused, PointRefusal)
        assert refused.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert "may lack keys" in refused.message
    whole = [b"8", b"y", b"9"]
    requested = {
        "f0": ({"offset": 10}, whole[:2]),
        "f1": ({"timestamp_ms": NOW + 11}, whole[:2]),
        "f2": ({}, whole),
        "f3": ({"offset": 0}, []),
    }
    for name, (at, values) in requested.items():
        point = await point_at(**at)
        assert isinstance(point, m.ForkedPartition)
        harness.topic(name, fork=m.TopicFork(source_topic_id=topic_id, partitions=[point]))
        await harness.hand_over(name, log.brokers[1])
        assert (await log.brokers[1].produce(name, keyed((b"own", b"z")))).error_code == 0
        assert await log.brokers[1].values_from(name, 0) == [*values, b"z"]


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_fork_contains_records_that_are_compacted_during_its_creation(
    log, harness, monkeypatch, is_open
):
    """A newer value is written and compacted while the leader uploads the older one."""
    await log.produce(keyed((b"k", b"old")))
    leader = log.leader
    upload = leader.storage.upload

    async def slow_upload():
        await upload()
        await log.produce(keyed((b"k", b"new")))
        if is_open:
            assert (await leader.produce("t", transactional(7, 0, (b"k", b"open")))).error_code == 0
        await upload()
        duty = cleaner_of(leader, group_bytes_max=1)
        await duty.check()
        assert duty.removed_records == 1

    monkeypatch.setattr(leader.storage, "upload", slow_upload)
    point = (await find_fork_points(leader, [("t", {0: WantedPoint()})]))[0][0]
    assert isinstance(point, m.ForkedPartition)
    topic_id = harness.image.topics.by_name("t").topic_id
    harness.topic("f", fork=m.TopicFork(source_topic_id=topic_id, partitions=[point]))
    await harness.hand_over("f", log.brokers[1])
    assert await log.brokers[1].committed("f") == [b"new"]


async def test_a_fork_of_a_log_compacted_meanwhile_is_retried(log, harness):
    await log.produce(*[keyed((b"k", b"%d" % number)) for number in range(9)], keyed((b"x", b"y")))
    await log.upload()
    requested = {0: WantedPoint(offset=5)}
    before = (await find_fork_points(log.leader, [("t", requested)]))[0][0]
    assert isinstance(before, m.ForkedPartition)
    assert before.end_offset == 5
    await cleaner_of(log.leader).check()
    topic_id = harness.image.topics.by_name("t").topic_id
    fork = m.TopicFork(source_topic_id=topic_id, partitions=[before])
    with pytest.raises(AssertionError, match="past the fork at"):
        harness.topic("f", fork=fork)
