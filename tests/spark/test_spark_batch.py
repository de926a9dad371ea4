"""Batch queries return the records that a Kafka consumer gets from the brokers."""

from collections.abc import Sequence

import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from penstock.lake.spark.source import register
from tests.support.clients import create_topic
from tests.support.spark_rows import rows_of
from tests.support.spark_session import needs_pushdown
from tests.support.threaded_cluster import Row, ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

PARTITIONS = 3
T0_MS = 1_700_000_000_000


def reader(spark: SparkSession, cluster: ThreadedCluster, **options: object) -> DataFrameReader:
    given = {
        "store": cluster.store_url,
        "subscribe": "flights",
        "kafka.bootstrap.servers": "ignored:9092",
        **options,
    }
    return spark.read.format("penstock").options(
        **{name: str(value) for name, value in given.items()}
    )


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted(
        (row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect()
    )


@pytest.fixture(scope="module")
def consumed(cluster: ThreadedCluster) -> Sequence[Row]:
    cluster.create("flights", PARTITIONS)
    count = 0
    for codec in ("none", "lz4", "zstd", "gzip", "snappy"):
        count += cluster.produce(
            [
                {
                    "topic": "flights",
                    "partition": number % PARTITIONS,
                    "key": None if number % 7 == 0 else b"k%d" % number,
                    "value": None if number % 11 == 0 else b"%s-%d" % (codec.encode(), number) * 5,
                    "timestamp": T0_MS + number * 1_000,
                    "headers": [("a", b"%d" % number), ("b", None)] if number % 5 == 0 else None,
                }
                for number in range(300)
            ],
            **{"compression.type": codec},
        )
    return cluster.consume("flights", PARTITIONS, count)


def test_batch_query_returns_the_records_of_a_consumer(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]
) -> None:
    assert rows_of(reader(spark, cluster, includeHeaders="true").load()) == list(consumed)


def test_columns_are_selected_by_schema_or_option(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]
) -> None:
    by_schema = (
        reader(spark, cluster)
        .schema("offset bigint, partition int, headers array<struct<key:string,value:binary>>")
        .load()
    )
    assert by_schema.columns == ["offset", "partition", "headers"]
    assert sorted((row["partition"], row["offset"]) for row in by_schema.collect()) == [
        row[3:5] for row in consumed
    ]
    by_option = reader(spark, cluster, columns="timestamp,value").load()
    assert by_option.columns == ["timestamp", "value"]
    assert by_option.selectExpr("sum(length(value))").first()[0] == sum(
        len(row[1] or b"") for row in consumed
    )


@pytest.mark.parametrize(("schema", "text"), [
    ("offset string", "column offset of the schema must be bigint and nullable, got string"),
    ("ofset bigint",
     "the schema contains the unknown column 'ofset': choose from key, value, topic, .* did you "
     "mean offset"),
    ("offset bigint not null",
     "column offset of the schema must be bigint and nullable, got bigint not null"),
])  # fmt: skip
def test_unsupported_schemas_are_refused(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row], schema: str, text: str
) -> None:
    with pytest.raises(AnalysisException, match=text):
        reader(spark, cluster).schema(schema).load().collect()


@pytest.mark.parametrize(("options", "text"), [
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
    ({"startingOffsets": '{"flights":{"0":0}}'},
     r"Specified: Set\(flights-0\) Assigned: Set\(flights-0, flights-1, flights-2\)"),
    ({"startingTimestamp": T0_MS + 10**9},
     f"No offset matched from request of topic-partition flights-. and timestamp {T0_MS + 10**9}"),
    ({"store": "s4://x"},
     "option 'store': .*it does not begin with s3:, gs:, az:, file: or memory:"),
    ({"wal_store": "memory:"}, "option 'wal_store': .*memory: is a separate store"),
])  # fmt: skip
def test_invalid_options_are_refused(
    spark: SparkSession,
    cluster: ThreadedCluster,
    consumed: Sequence[Row],
    options: dict[str, object],
    text: str,
) -> None:
    with pytest.raises(AnalysisException, match=text):
        reader(spark, cluster, **options).load().collect()


def test_topics_are_selected_by_pattern_and_by_assignment(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]
) -> None:
    cluster.create("flowers", 1)
    cluster.produce([{"topic": "flowers", "value": b"rose"}])
    found = (
        spark.read.format("penstock")
        .options(store=cluster.store_url, subscribePattern="flight.|flow.*")
        .load()
    )
    counts = {row["topic"]: row["count"] for row in found.groupBy("topic").count().collect()}
    assert counts == {"flights": len(consumed), "flowers": 1}
    assigned = (
        spark.read.format("penstock")
        .options(store=cluster.store_url, assign='{"flights":[2]}')
        .load()
    )
    assert places(assigned) == [row[3:5] for row in consumed if row[3] == 2]


def test_snapshot_is_read_with_its_original_records(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    create_topic(cluster.bootstrap, "trips", 2)
    cluster.produce(
        [{"topic": "trips", "partition": at % 2, "value": b"%d" % at} for at in range(10)]
    )
    create_topic(cluster.bootstrap, "trips@monday", -1, penstock_fork_source="trips")
    cluster.produce([{"topic": "trips", "partition": 0, "value": b"later"}])

    def query(**options: str) -> DataFrame:
        given = {"store": cluster.store_url, **options}
        return spark.read.format("penstock").options(**given).load()

    found = query(subscribe="trips", snapshot="monday")
    assert {row["topic"] for row in found.select("topic").collect()} == {"trips"}
    expected = sorted((at % 2, at // 2) for at in range(10))
    assert places(found) == expected
    assert places(found.where("topic = 'trips' AND partition = 1")) == expected[5:]
    assert places(query(subscribePattern="trip.", snapshot="monday")) == expected
    begin = '{"trips":{"0":3}}'
    some = query(assign='{"trips":[0]}', snapshot="monday", startingOffsets=begin)
    assert places(some) == [(0, 3), (0, 4)]
    # Without the option, patterns do not match snapshots.
    assert places(query(subscribePattern="trips.*")) == sorted([*expected, (0, 5)])
    with pytest.raises(AnalysisException, match="topics do not exist: trips@tuesday"):
        query(subscribe="trips", snapshot="tuesday").collect()


def test_ranges_are_selected_by_offset_and_by_timestamp(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]
) -> None:
    """The topic contains five series of records, each with the same timestamps. A range by
    timestamp starts at the first record that is late enough.
    """

    def first(partition: int, timestamp_ms: int) -> int:
        return next(row[4] for row in consumed if row[3] == partition and row[5] >= timestamp_ms)

    given = {
        "startingOffsets": '{"flights":{"0":17,"1":-2,"2":499}}',
        "endingOffsets": '{"flights":{"0":18,"1":3,"2":-1}}',
    }
    assert places(reader(spark, cluster, **given).load()) == [
        (0, 17),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 499),
    ]
    at_ms, until_ms = T0_MS + 123_456, T0_MS + 200_000
    expected = [
        row[3:5] for row in consumed if first(row[3], at_ms) <= row[4] < first(row[3], until_ms)
    ]
    assert (
        places(reader(spark, cluster, startingTimestamp=at_ms, endingTimestamp=until_ms).load())
        == expected
    )
    by_partition = f'{{"flights":{{"0":{at_ms},"1":{T0_MS + 10**9},"2":{until_ms}}}}}'
    strategy = {
        "startingOffsetsByTimestamp": by_partition,
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": T0_MS + 10**9,
    }
    begins = {0: first(0, at_ms), 1: 500, 2: first(2, until_ms)}
    assert places(reader(spark, cluster, **strategy).load()) == [
        row[3:5] for row in consumed if row[4] >= begins[row[3]]
    ]


FILTERS = [
    "topic = 'flights' and partition in (1, 2) and offset between 100 and 120",
    "timestamp >= timestamp_millis(1700000250000) and not offset = 499",
    (
        "partition <> 0 and timestamp < timestamp_millis(1700000003000) and offset in (0, 1, 100,"
        " 400, 401)"
    ),
    "topic = 'other'",
]


@needs_pushdown
def test_filters_are_pushed_down_only_if_the_setting_allows(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    without = [
        reader(spark, cluster).load().select("partition", "offset").filter(condition)
        for condition in FILTERS
    ]
    expected = [places(frame) for frame in without]
    assert all(" Filter " in plan_of(frame) for frame in without)
    try:
        register(spark)
        assert spark.conf.get(setting) == "true"
        pushed = [
            reader(spark, cluster).load().select("partition", "offset").filter(condition)
            for condition in FILTERS
        ]
        assert [places(frame) for frame in pushed] == expected
        assert not any(" Filter " in plan_of(frame) for frame in pushed)
    finally:
        spark.conf.set(setting, "false")
    assert [len(found) > 0 for found in expected] == [True, True, True, False]


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.costly("plans and runs several SQL statements in Python workers")
def test_table_keeps_the_options_of_its_creation(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]
) -> None:
    options = f"store '{cluster.store_url}', subscribe 'flights', columns 'offset,partition'"
    spark.sql(f"create table flights using penstock options ({options})")
    table = spark.newSession().table("flights")
    assert table.columns == ["offset", "partition"]
    assert places(table) == [row[3:5] for row in consumed]
    ends = """with (endingOffsets '{"flights":{"0":2,"1":0,"2":0}}')"""
    assert places(spark.sql(f"select * from flights {ends}")) == [(0, 0), (0, 1)]
    with pytest.raises(AnalysisException, match="options of a table to writers: use a temporary"):
        spark.sql("insert into flights select * from flights")


def test_rows_are_inserted_through_a_view_or_with_options(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    cluster.create("inserted", 1)
    options = {
        "store": cluster.store_url,
        "subscribe": "inserted",
        "columns": "key,value",
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": "inserted",
    }
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"create temporary view inserts using penstock options ({given})")
    spark.sql("insert into inserts values (binary('k'), binary('view'))")
    spark.sql(f"create table inserted using penstock options ({given})")
    writer = spark.sql("select binary('k') as key, binary('table') as value").writeTo("inserted")
    writer.options(**options).append()
    assert [row[1] for row in cluster.consume("inserted", 1, 2)] == [b"view", b"table"]


def test_tasks_are_packed_by_bytes_and_split_on_demand(
    spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]
) -> None:
    assert reader(spark, cluster).load().rdd.getNumPartitions() == 1, (
        "three partitions in a few small objects must become one task"
    )
    split = reader(spark, cluster, minPartitions=5).load()
    assert split.rdd.getNumPartitions() >= 5
    assert places(split) == [row[3:5] for row in consumed]
    few = reader(spark, cluster, maxRecordsPerPartition=400).load()
    assert max(few.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()) <= 400
    assert places(few) == [row[3:5] for row in consumed]


def test_query_for_deleted_records_reports_data_loss(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    cluster.create("short", 1)
    cluster.produce([{"topic": "short", "value": b"%d" % number} for number in range(30)])
    cluster.trim("short", 10)
    given = {"subscribe": "short", "startingOffsets": '{"short":{"0":4}}'}
    assert places(reader(spark, cluster, subscribe="short").load()) == [
        (0, offset) for offset in range(10, 30)
    ]
    with pytest.raises(
        AnalysisException,
        match=r"Could not read records in offset \[4, 10\) for topic partition short-0",
    ):
        reader(spark, cluster, **given).load().collect()
    assert places(reader(spark, cluster, **given, failOnDataLoss="false").load()) == [
        (0, offset) for offset in range(10, 30)
    ]


def test_records_removed_by_compaction_are_not_data_loss(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    create_topic(
        cluster.bootstrap, "newest", cleanup_policy="compact", min_cleanable_dirty_ratio="0"
    )
    records = [
        {"topic": "newest", "key": b"%d" % (number % 4), "value": b"%d" % number}
        for number in range(50)
    ]
    cluster.produce(records[:30], **{"compression.type": "lz4"})
    cluster.produce(records[30:])
    cluster.compact("newest")
    newest = [(0, offset) for offset in range(46, 50)]
    wait_until(lambda: places(reader(spark, cluster, subscribe="newest").load()) == newest)
    frame = reader(
        spark,
        cluster,
        subscribe="newest",
        startingOffsets='{"newest":{"0":7}}',
        endingOffsets='{"newest":{"0":48}}',
    ).load()
    assert places(frame) == newest[:2]
    assert frame.count() == 2
    assert sorted(row["value"] for row in frame.collect()) == [b"46", b"47"]


def test_empty_topic_has_no_rows(spark: SparkSession, cluster: ThreadedCluster) -> None:
    cluster.create("empty", 2)
    assert reader(spark, cluster, subscribe="empty").load().count() == 0


def test_objects_deleted_after_planning_are_planned_again(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    """The query is planned while the records are in WAL slots, and runs after they were uploaded
    and the slots deleted.
    """
    cluster.create("moving", 2)
    before = cluster.keys("wal/")
    cluster.produce(
        [
            {"topic": "moving", "partition": number % 2, "value": b"%d" % number}
            for number in range(200)
        ]
    )
    frame = reader(spark, cluster, subscribe="moving").load()
    assert frame._jdf.queryExecution().executedPlan() is not None
    planned = cluster.keys("wal/") - before
    assert planned
    cluster.until_deleted(planned)
    assert places(frame) == [(partition, offset) for partition in range(2) for offset in range(100)]


def test_error_names_the_damaged_object(spark: SparkSession, cluster: ThreadedCluster) -> None:
    cluster.create("damaged", 1)
    before = cluster.keys("data/")
    cluster.produce([{"topic": "damaged", "value": b"x" * 1_000} for _ in range(50)])
    key = cluster.until_uploaded("damaged", before)
    cluster.damage(key, b"x" * 1_000)
    with pytest.raises(PythonException, match=rf"object {key}, damaged-0 at offset 0"):
        reader(spark, cluster, subscribe="damaged").load().collect()


def test_offsets_are_counted_without_reading_records(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    """The topic has a damaged record, which fails only queries that read records. Transaction
    markers are not counted.
    """
    register(spark)
    cluster.create("counted", 1)
    before = cluster.keys("data/")
    cluster.produce(
        [
            {"topic": "counted", "partition": 0, "value": b"number %d" % number}
            for number in range(500)
        ]
    )
    key = cluster.until_uploaded("counted", before)
    rows = reader(spark, cluster, subscribe="counted", columns="offset,partition,topic").load()
    cluster.damage(key, b"number 77")
    assert rows.count() == 500
    assert rows.where("offset >= 490").count() == 10
    found = rows.where("offset < 2").collect()
    assert [tuple(row) for row in found] == [(0, 0, "counted"), (1, 0, "counted")]
    with pytest.raises(PythonException, match="counted-0 at offset"):
        reader(spark, cluster, subscribe="counted").load().count()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "counted"})
    producer.init_transactions(PATIENCE_S)
    cluster.create("marked", 1)
    for is_committed in (True, False):
        producer.begin_transaction()
        producer.produce("marked", b"v", partition=0)
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(PATIENCE_S)
    marked = {"subscribe": "marked", "columns": "offset"}
    assert reader(spark, cluster, **marked).load().count() == 2
    committed = {**marked, "kafka.isolation.level": "read_committed"}
    assert reader(spark, cluster, **committed).load().count() == 1


def test_time_bounds_are_exact_in_a_compacted_topic(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    """Timestamps are unordered, and most records have been compacted away."""
    register(spark)
    create_topic(
        cluster.bootstrap, "compacted", 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0"
    )
    wait_until(lambda: cluster.has("compacted"))
    times = [T0_MS + number * 7_919 % 1_000 for number in range(200)]
    cluster.produce(
        [
            {
                "topic": "compacted",
                "partition": 0,
                "key": b"k%d" % (number * 13 % 50),
                "value": b"v",
                "timestamp": at,
            }
            for number, at in enumerate(times)
        ]
    )
    cluster.compact("compacted")
    left = list(range(150, 200))

    def offsets(*, where: str = "true", **options: object) -> list[int]:
        frame = reader(spark, cluster, subscribe="compacted", **options).load().where(where)
        return sorted(row["offset"] for row in frame.select("offset").collect())

    wait_until(lambda: offsets() == left)
    assert offsets(columns="offset") == left
    for at in (T0_MS, T0_MS + 300, T0_MS + 301, T0_MS + 999, T0_MS + 5_000):
        assert offsets(where=f"timestamp < timestamp_millis({at})") == [
            offset for offset in left if times[offset] < at
        ]
        assert offsets(where=f"timestamp <= timestamp_millis({at})") == [
            offset for offset in left if times[offset] <= at
        ]
        end = next((offset for offset in left if times[offset] >= at), 200)
        assert offsets(endingTimestamp=at) == [offset for offset in left if offset < end]
        begin = {"startingTimestamp": at, "startingOffsetsByTimestampStrategy": "latest"}
        assert offsets(**begin) == [offset for offset in left if offset >= end]
