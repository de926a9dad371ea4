"""Interleaved committed, aborted and open transactions: Spark, `scan` and the export return the
records that a read_committed consumer gets.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql import SparkSession

from penstock import scan
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.arrow.renew import ranges_of
from penstock.lake.manifest.errors import OffsetsMissing
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark.limit_types import ReadAllAvailable
from penstock.lake.spark.source import StreamReader
from penstock.lake.table.source import TopicSource
from pyspark_penstock import DefaultSource
from tests.support.clients import PATIENT_TRANSACTION
from tests.support.threaded_cluster import Row, ThreadedCluster
from tests.support.waiting import PATIENCE_S

TOPIC = "transactions"
ROUNDS = 14
WAIT_S = PATIENCE_S


class Writers:
    """Three transactional producers and a plain one. Counts the records that a read_committed
    consumer must get.
    """

    def __init__(self, cluster: ThreadedCluster) -> None:
        self.cluster = cluster
        self.committed_count = 0
        self.plain = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
        self.transactional = [
            Producer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "linger.ms": 0,
                    "transactional.id": f"writer-{number}",
                }
                | PATIENT_TRANSACTION
            )
            for number in range(3)
        ]
        for producer in self.transactional:
            producer.init_transactions(WAIT_S)

    def write(self, producer: Producer, what: str, count: int) -> None:
        for number in range(count):
            producer.produce(TOPIC, b"%s-%d" % (what.encode(), number), partition=number % 2)
        assert producer.flush(WAIT_S) == 0

    def interleave(self) -> None:
        """Overlap two transactions in each round. About a third of all transactions are aborted."""
        for number in range(ROUNDS):
            one, two = self.transactional[number % 3], self.transactional[(number + 1) % 3]
            one.begin_transaction()
            self.write(one, f"a{number}", 4)
            two.begin_transaction()
            self.write(self.plain, f"plain{number}", 2)
            self.write(two, f"b{number}", 3)
            self.write(one, f"c{number}", 2)
            self.end(two, number % 3 == 0, 3)
            self.end(one, number % 3 == 1, 6)
            self.committed_count += 2

    def end(self, producer: Producer, is_abort: bool, count: int) -> None:
        if is_abort:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
            self.committed_count += count

    def leave_open(self) -> None:
        """Leave a transaction open. Its records and later ones must not be readable."""
        self.transactional[0].begin_transaction()
        self.write(self.transactional[0], "open", 4)
        self.write(self.plain, "behind", 2)


@pytest.fixture(scope="module")
def writers(cluster: ThreadedCluster) -> Iterator[Writers]:
    cluster.create(TOPIC, 2)
    writers = Writers(cluster)
    writers.interleave()
    writers.leave_open()
    yield writers
    writers.transactional[0].abort_transaction(WAIT_S)
    writers.transactional.clear()  # the producers must end before the brokers
    del writers.plain


def last_stable_offsets(cluster: ThreadedCluster) -> dict[int, int]:
    """Return the last stable offsets that brokers report."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    requested = {TopicPartition(TOPIC, number): OffsetSpec.latest() for number in range(2)}
    found = admin.list_offsets(requested, isolation_level=IsolationLevel.READ_COMMITTED)
    return {item.partition: response.result(WAIT_S).offset for item, response in found.items()}


def consumed(cluster: ThreadedCluster, count: int) -> list[Row]:
    return cluster.consume(TOPIC, 2, count, **{"isolation.level": "read_committed"})


def stream(cluster: ThreadedCluster) -> StreamReader:
    options = {
        "store": cluster.store_url,
        "subscribe": TOPIC,
        "columns": "partition,offset",
        "startingOffsets": "earliest",
    }
    made = DefaultSource(options | {"kafka.isolation.level": "read_committed"})
    return made.streamReader(made.schema())


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row[3], row[4]) for row in rows]


def test_scan_and_export_return_committed_records(
    cluster: ThreadedCluster, writers: Writers
) -> None:
    rows = consumed(cluster, writers.committed_count)
    assert not any(row[1] is not None and row[1].startswith((b"open", b"behind")) for row in rows)
    found = scan(
        cluster.store_url,
        TOPIC,
        columns=["partition", "offset", "value"],
        isolation_level="read_committed",
    )
    assert {number: end for number, (_, end) in found.offsets.items()} == last_stable_offsets(
        cluster
    )
    table = found.to_table().to_pydict()
    assert list(zip(table["partition"], table["offset"], table["value"], strict=True)) == [
        (row[3], row[4], row[1]) for row in rows
    ]
    everything = scan(cluster.store_url, TOPIC, columns=["offset"]).to_table().num_rows
    assert everything > len(rows) + 6
    source = TopicSource(StoreCluster(cluster.store_url), TOPIC)
    topic_id, bounds = source.bounds()
    assert {number: bound.end_offset for number, bound in bounds.items()} == last_stable_offsets(
        cluster
    )
    cut = scan(
        cluster.store_url,
        TOPIC,
        end=dict.fromkeys(range(2), 20),
        columns=["partition", "offset"],
        isolation_level="read_committed",
    )
    slices = source.plan([OffsetRange(TOPIC, 0, 0, 20), OffsetRange(TOPIC, 1, 0, 20)], topic_id)
    exported = [batch.to_pydict() for batch in source.read(slices, ["partition", "offset"])]
    read = [
        place
        for batch in exported
        for place in zip(batch["partition"], batch["offset"], strict=True)
    ]
    assert read == [place for place in places(rows) if place[1] < 20]
    bounded = cut.to_table()
    assert read == list(
        zip(*(bounded[name].to_pylist() for name in ("partition", "offset")), strict=True)
    )
    with pytest.raises(OffsetsMissing):
        scan(
            cluster.store_url,
            TOPIC,
            end={0: bounds[0].end_offset + 1, 1: 0},
            isolation_level="read_committed",
        )


def test_micro_batch_ends_at_the_last_stable_offset_and_replays_identically(
    cluster: ThreadedCluster, writers: Writers
) -> None:
    reader = stream(cluster)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert {topic: parts for topic, parts in end.items() if parts} == {
        TOPIC: {str(number): offset for number, offset in last_stable_offsets(cluster).items()}
    }
    middle = {TOPIC: {partition: offset // 2 for partition, offset in end[TOPIC].items()}}
    expected = places(consumed(cluster, writers.committed_count))
    for _ in range(2):
        read = [
            place
            for low, high in ((start, middle), (middle, end))
            for task in stream(cluster).partitions(low, high)
            for batch in reader.read(task)
            for place in zip(
                batch.column("partition").to_pylist(),
                batch.column("offset").to_pylist(),
                strict=True,
            )
        ]
        assert sorted(read) == expected
        before = {
            part.key for task in reader.partitions(start, end) for part in task.value.slices
        } & cluster.keys("wal/")
        cluster.until_deleted(before)
    assert {
        item.partition
        for task in reader.partitions(start, end)
        for item in ranges_of(task.value.slices)
    } == {0, 1}


def test_spark_reads_committed_records(
    cluster: ThreadedCluster, writers: Writers, spark: SparkSession
) -> None:
    frame = (
        spark.read.format("penstock").option("store", cluster.store_url).option("subscribe", TOPIC)
    )
    rows = (
        frame.option("kafka.isolation.level", "read_committed")
        .load()
        .select("partition", "offset", "value")
        .collect()
    )
    expected = [(row[3], row[4], row[1]) for row in consumed(cluster, writers.committed_count)]
    assert sorted((row.partition, row.offset, bytes(row.value)) for row in rows) == expected
