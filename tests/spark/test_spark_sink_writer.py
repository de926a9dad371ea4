"""Write Arrow batches with a task's writer, without a JVM, and consume the records."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.lake.spark.sink.errors import InvalidRow, WriteFailed
from penstock.lake.spark.sink.writers import BatchWriter, TaskDone
from tests.support.threaded_cluster import Row, ThreadedCluster

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
T0_MS = 1_700_000_000_000


def write(cluster: ThreadedCluster, columns: Mapping[str, Any], **options: str) -> TaskDone:
    """Write the table as a task does, in two Arrow batches."""
    table = pa.table(dict(columns))
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "kafka.linger.ms": "0", **options}
    writer = BatchWriter(given, from_arrow_schema(table.schema), overwrite=False)
    return writer.write(iter(table.to_batches(max_chunksize=max(1, table.num_rows // 2))))


def test_every_part_of_a_record_is_written(cluster: ThreadedCluster) -> None:
    cluster.create("parts", 2)
    moments = [datetime.fromtimestamp((T0_MS + number) / 1_000, UTC) for number in range(4)]
    columns = {
        "topic": pa.array(["parts"] * 4),
        "key": pa.array([b"k", None, b"", b"l"]),
        "value": pa.array(["v", "", None, "ü"]),
        "partition": pa.array([0, 1, 0, 1], pa.int32()),
        "timestamp": pa.array(moments, pa.timestamp("us", tz="UTC")),
        "headers": pa.array(
            [[("a", b"1"), ("a", None)], None, [("b", b"")], [("c", b"2")]], HEADERS
        ),
        "else": pa.array([1, 2, 3, 4]),
    }
    assert write(cluster, columns).row_count == 4
    expected: list[Row] = [
        (b"k", b"v", "parts", 0, 0, T0_MS, 0, (("a", b"1"), ("a", None))),
        (b"", None, "parts", 0, 1, T0_MS + 2, 0, (("b", b""),)),
        (None, b"", "parts", 1, 0, T0_MS + 1, 0, None),
        (b"l", "ü".encode(), "parts", 1, 1, T0_MS + 3, 0, (("c", b"2"),)),
    ]
    assert cluster.consume("parts", 2, 4) == expected


def test_keys_are_partitioned_as_by_the_java_client(cluster: ThreadedCluster) -> None:
    cluster.create("keyed", 5)
    keys = [f"ké{number}" for number in range(100)]
    write(cluster, {"key": pa.array(keys), "value": pa.array(keys)}, topic="keyed")
    rows = cluster.consume("keyed", 5, 100)
    assert sorted((row[0], row[3]) for row in rows) == sorted(
        (key.encode(), (murmur2(key.encode()) & 0x7FFFFFFF) % 5) for key in keys
    )


def test_writer_waits_while_the_buffer_is_full(cluster: ThreadedCluster) -> None:
    cluster.create("narrow", 1)
    values = [b"%d" % number * 500 for number in range(2_000)]
    done = write(
        cluster, {"value": pa.array(values)}, topic="narrow", **{"kafka.buffer.memory": "16384"}
    )
    assert done.row_count == 2_000
    assert [row[1] for row in cluster.consume("narrow", 1, 2_000)] == values


@pytest.mark.parametrize(("columns", "options", "text"), [
    ({"partition": pa.array([0, 9], pa.int32())}, {},
     "topic few partition 9: .*[Uu]nknown partition"),
    ({"topic": ["few", "no name"]}, {"kafka.topic.metadata.propagation.max.ms": "500"},
     "topic no name.*: .*[Ii]nvalid topic"),
    ({"value": ["v", "v" * 5_000]}, {"kafka.max.request.size": "2000"},
     "topic few: .*Message size too large"),
])  # fmt: skip
def test_refused_record_fails_the_task(
    cluster: ThreadedCluster, columns: dict[str, Any], options: dict[str, str], text: str
) -> None:
    if not cluster.has("few"):
        cluster.create("few", 2)
    with pytest.raises(WriteFailed, match=text):
        write(cluster, {"topic": ["few", "few"], "value": ["v", "v"]} | columns, **options)


def test_unreachable_brokers_fail_the_task_after_a_timeout(cluster: ThreadedCluster) -> None:
    nobody = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.delivery.timeout.ms": "5000",
        "kafka.message.timeout.ms": "5000",
    }
    with pytest.raises(
        WriteFailed, match=r"topic t: .*timed out.*(Connection refused|brokers are down)"
    ):
        write(cluster, {"value": ["v"]}, topic="t", **nobody)


def test_row_without_a_topic_is_refused(cluster: ThreadedCluster) -> None:
    with pytest.raises(InvalidRow, match="null topic present in the data"):
        write(cluster, {"topic": pa.array(["few", None, None, None]), "value": ["v"] * 4})


def test_task_without_rows_connects_to_no_broker(cluster: ThreadedCluster) -> None:
    done = write(
        cluster,
        {"value": pa.array([], pa.string())},
        topic="t",
        **{"kafka.bootstrap.servers": "127.0.0.1:1"},
    )
    assert done == TaskDone(0)
