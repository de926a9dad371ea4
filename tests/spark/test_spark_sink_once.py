"""Each batch is committed exactly once in one transaction, even if its driver is killed, returns
late, or commits twice. Only the driver's side runs, without a JVM.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql.types import StringType, StructField, StructType

from penstock.lake.spark.sink.errors import InvalidRow, StaleWrite, TransactionFailed
from penstock.lake.spark.sink.options import WriteOptions, parse_write
from penstock.lake.spark.sink.staging import Staging
from penstock.lake.spark.sink.transaction import Transaction, WriteId
from penstock.lake.spark.sink.writers import BatchWriter, StreamWriter, TaskDone
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

VALUE = StructType([StructField("value", StringType())])
DRIVER = """
import sys, time
import pyarrow as pa
from penstock.lake.spark.sink.options import parse_write
from penstock.lake.spark.sink.transaction import Transaction, WriteId

def batches():
    yield pa.record_batch({"value": ["lost"] * 1_000})
    print("sent", flush=True)
    time.sleep(600)

options = {
    "kafka.bootstrap.servers": sys.argv[1],
    "topic": sys.argv[2],
    "exactlyOnce": "true",
    "store": "memory:",
    "kafka.linger.ms": "0",
}
written = parse_write(options, streaming=True, overwrite=False)
Transaction(written, WriteId(sys.argv[3], 0, sys.argv[3])).commit(batches)
"""


def options(cluster: ThreadedCluster, topic: str, **more: str) -> dict[str, str]:
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": topic,
        "store": cluster.store_url,
        "exactlyOnce": "true",
    }
    return given | {"kafka.linger.ms": "0"} | more


def parsed(cluster: ThreadedCluster, topic: str) -> WriteOptions:
    return parse_write(options(cluster, topic), streaming=True, overwrite=False)


def rows(values: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values)})


def staged(
    cluster: ThreadedCluster, query_id: str, batch_id: int, tasks: Sequence[Sequence[str]]
) -> list[TaskDone | None]:
    """Stage the rows of each task. Return what the tasks report to Spark."""
    staging = Staging(cluster.store_url, query_id)
    done: list[TaskDone | None] = []
    for task, values in enumerate(tasks):
        row_count, keys = staging.put(iter([rows(values)] if values else []), "t", batch_id, task)
        done.append(TaskDone(row_count, tuple(keys), query_id))
    return done


def values_of(cluster: ThreadedCluster, topic: str, isolation: str = "read_committed") -> list[str]:
    """Return all values that a consumer gets from the topic's only partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    found: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(PATIENCE_S)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            assert error is None, error
            found.append((message.value() or b"").decode())
        raise AssertionError("the consumer did not reach the end of the partition")
    finally:
        consumer.close()


def test_micro_batch_is_committed_once_with_any_number_of_tasks(cluster: ThreadedCluster) -> None:
    cluster.create("cut", 1)
    query_id = str(uuid4())
    writer = StreamWriter(options(cluster, "cut"), VALUE, overwrite=False)
    staged(cluster, query_id, 0, [["of a failed attempt"]])
    writer.commit(staged(cluster, query_id, 0, [["a"], [], ["b", "c"]]), 0)
    assert values_of(cluster, "cut") == ["a", "b", "c"]
    assert cluster.keys("staged/") == set(), (
        "staged rows must be deleted after the commit, and those of failed attempts with them"
    )
    writer.commit(staged(cluster, query_id, 0, [["a", "b"], ["c"]]), 0)
    assert values_of(cluster, "cut") == [
        "a",
        "b",
        "c",
    ], "a batch must not be written again if the driver died before Spark noted the commit"
    writer.commit(staged(cluster, query_id, 1, [[]]), 1)
    writer.commit(staged(cluster, query_id, 2, [["d"]]), 2)
    late = staged(cluster, query_id, 1, [["x"]])
    with pytest.raises(
        StaleWrite, match="batch 1 is older than batch 2, which was committed already"
    ):
        writer.commit(late, 1)
    writer.abort(late, 1)
    other = str(uuid4())
    writer.commit(staged(cluster, other, 0, [["other query"]]), 0)
    assert values_of(cluster, "cut") == ["a", "b", "c", "d", "other query"]


def test_driver_killed_in_its_transaction_writes_nothing(
    cluster: ThreadedCluster,
) -> None:
    cluster.create("killed", 1)
    query_id = str(uuid4())
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.bootstrap, "killed", query_id],
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "sent\n"
            wait_until(lambda: len(values_of(cluster, "killed", "read_uncommitted")) == 1_000)
        finally:
            driver.kill()
    assert values_of(cluster, "killed") == []
    StreamWriter(options(cluster, "killed"), VALUE, overwrite=False).commit(
        staged(cluster, query_id, 0, [["again"]]), 0
    )
    assert values_of(cluster, "killed") == ["again"], (
        "a new driver must not wait until the old transaction times out"
    )


def test_fenced_driver_writes_nothing(cluster: ThreadedCluster) -> None:
    cluster.create("zombie", 1)
    requested = WriteId(str(uuid4()), 7, "q")

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield rows(["zombie"])
        assert Transaction(parsed(cluster, "zombie"), requested).commit(
            lambda: iter([rows(["new driver"])])
        )
        yield rows(["zombie"] * 10)

    with pytest.raises(TransactionFailed, match=f"{requested.name}.*[Ff]enced"):
        Transaction(parsed(cluster, "zombie"), requested).commit(interrupted)
    assert values_of(cluster, "zombie") == ["new driver"]
    assert not Transaction(parsed(cluster, "zombie"), requested).commit(
        lambda: iter([rows(["late"])])
    )
    with pytest.raises(StaleWrite, match="batch 7 was committed already by q"):
        Transaction(parsed(cluster, "zombie"), requested._replace(owner="other")).commit(
            lambda: iter([rows(["late"])])
        )
    assert values_of(cluster, "zombie") == ["new driver"]


def test_invalid_row_aborts_the_transaction(cluster: ThreadedCluster) -> None:
    cluster.create("aborted", 1)
    transaction = Transaction(parsed(cluster, "aborted"), WriteId(str(uuid4()), 0, ""))

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(["a"])
        yield pa.record_batch({"value": ["b"], "partition": [-1]})

    with pytest.raises(InvalidRow):
        transaction.commit(broken)
    assert transaction.commit(lambda: iter([rows(["c"])]))
    assert values_of(cluster, "aborted") == ["c"]


def test_named_batch_write_is_atomic_and_idempotent(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("whole", 1)

    def job(values: Sequence[str], **more: str) -> BatchWriter:
        writer = BatchWriter(options(cluster, "whole", **more), VALUE, overwrite=False)
        done = [writer.write(iter([rows(values[:1])])), writer.write(iter([rows(values[1:])]))]
        assert len(cluster.keys("staged/")) == 2
        (writer.commit if "abort" not in values else writer.abort)(done)
        assert cluster.keys("staged/") == set()
        return writer

    job(["a", "abort"])
    assert values_of(cluster, "whole", "read_uncommitted") == []
    for version in ("3", "3", "4"):
        job([f"a{version}", f"b{version}"], txnAppId=f"copy-{tmp_path.name}", txnVersion=version)
    job(["c", "d"])
    assert values_of(cluster, "whole") == ["a3", "b3", "a4", "b4", "c", "d"]
