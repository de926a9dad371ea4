"""Write with `df.write.format("penstock")` and consume from the brokers: every row becomes a
record, or an error reports it.
"""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from tests.support.spark_session import limits
from tests.support.streaming_queries import until_ended
from tests.support.threaded_cluster import Row, ThreadedCluster

T0_MS = 1_700_000_000_000


def writer(frame: DataFrame, cluster: ThreadedCluster, **options: object) -> DataFrameWriter:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "kafka.linger.ms": "0", **options}
    return (
        frame.write.format("penstock")
        .mode("append")
        .options(**{name: str(value) for name, value in given.items()})
    )


def contents(rows: list[Row]) -> list[tuple[object, ...]]:
    """Return (key, value, partition, timestamp, headers) of each row, sorted."""
    return sorted(((row[0], row[1], row[3], row[5], row[7]) for row in rows), key=repr)


def test_topic_is_copied_with_all_parts_of_each_record(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    cluster.create("copied", 3)
    cluster.create("copy", 3)
    count = cluster.produce(
        {
            "topic": "copied",
            "partition": number % 3,
            "key": None if number % 7 == 0 else b"k%d" % number,
            "value": None if number % 11 == 0 else b"v%d" % number * 20,
            "timestamp": T0_MS + number,
            "headers": [("a", b"%d" % number), ("a", None)] if number % 5 == 0 else None,
        }
        for number in range(1_000)
    )
    source = {
        "store": cluster.store_url,
        "subscribe": "copied",
        "includeHeaders": "true",
        "minPartitions": "4",
    }
    writer(spark.read.format("penstock").options(**source).load(), cluster, topic="copy").save()
    assert contents(cluster.consume("copy", 3, count)) == contents(
        cluster.consume("copied", 3, count)
    )


def test_refused_record_fails_the_job(spark: SparkSession, cluster: ThreadedCluster) -> None:
    cluster.create("few", 2)
    frame = spark.range(10, numPartitions=1).selectExpr("'v' AS value", "int(id) AS partition")
    with pytest.raises(PythonException, match=r"topic few partition [2-9]: .*[Uu]nknown partition"):
        writer(frame, cluster, topic="few").save()


@pytest.mark.parametrize(("columns", "options", "text"), [
    (["'v' AS value"], {},
     "topic option required when no 'topic' attribute is present. Use the topic option for setting "
     "a topic."),
    (["'k' AS key"], {"topic": "t"}, "Required attribute 'value' not found"),
    (["id AS value"], {"topic": "t"},
     r"value attribute unsupported type bigint. value must be a\(n\) string or binary"),
    (["'v' AS value", "id AS partition"], {"topic": "t"},
     r"partition attribute unsupported type bigint. partition must be a\(n\) int"),
    (["'v' AS value"], {"topic": "t", "kafka.key.serializer": "x"},
     "Kafka option 'key.serializer' is not supported as keys are"),
    (["'v' AS value"], {"topic": "t", "kafka.acsk": "all"},
     'Kafka options: No such configuration property: "acsk"'),
    (["'v' AS value"], {"topic": "t", "exactlyOnce": "true", "store": "s4://x"},
     "option 'store': .*it does not begin with s3:"),
])  # fmt: skip
def test_invalid_dataframes_and_options_are_refused(
    spark: SparkSession,
    cluster: ThreadedCluster,
    columns: list[str],
    options: dict[str, str],
    text: str,
) -> None:
    with pytest.raises(AnalysisException, match=text):
        writer(spark.range(1).selectExpr(*columns), cluster, **options).save()


def test_topic_cannot_be_overwritten(spark: SparkSession, cluster: ThreadedCluster) -> None:
    with pytest.raises(AnalysisException, match="Save mode Overwrite not allowed for Kafka"):
        writer(spark.range(1).selectExpr("'v' AS value"), cluster, topic="t").mode(
            "overwrite"
        ).save()


def test_stream_continues_at_its_checkpoint(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("upper", 2)
    cluster.create("lower", 2)
    source = {
        "store": cluster.store_url,
        "subscribe": "upper",
        "startingOffsets": "earliest",
        **limits(maxOffsetsPerTrigger="70"),
    }
    frame = spark.readStream.format("penstock").options(**source).load()
    query = frame.selectExpr("lower(string(value)) AS value", "partition").writeStream.format(
        "penstock"
    )
    query = query.options(
        **{
            "kafka.bootstrap.servers": cluster.bootstrap,
            "topic": "lower",
            "checkpointLocation": str(tmp_path),
        }
    )
    for begin, end in ((0, 150), (150, 200)):
        cluster.produce(
            {"topic": "upper", "partition": number % 2, "value": b"V%d" % number}
            for number in range(begin, end)
        )
        until_ended(query.trigger(availableNow=True).start)
        rows = cluster.consume("lower", 2, end)
        assert [row[1] for row in rows] == [
            b"v%d" % number for partition in (0, 1) for number in range(partition, end, 2)
        ]
