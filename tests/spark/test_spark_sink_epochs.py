"""A streaming query with exactlyOnce: what read_committed consumers get after a Python worker and
the driver were killed.
"""

import os
import signal
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tests.support.spark_session import HAS_LIMITS, limits
from tests.support.streaming_queries import until_ended
from tests.support.threaded_cluster import ThreadedCluster

pytestmark = [
    pytest.mark.costly("runs a streaming query three times, with three kinds of Python workers"),
    # Spark warns about every user-defined function.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_every_row_is_committed_once_if_worker_and_driver_die(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("before", 2)
    cluster.create("after", 1)
    count = cluster.produce(
        {"topic": "before", "partition": number % 2, "value": b"%d" % number}
        for number in range(100)
    )
    killed = tmp_path / "killed"

    def killed_once(value: bytes) -> bytes:
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    source = {
        "store": cluster.store_url,
        "subscribe": "before",
        "startingOffsets": "earliest",
        **limits(maxOffsetsPerTrigger="60"),
    }
    sink = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": "after",
        "store": cluster.store_url,
        "exactlyOnce": "true",
    }
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        read = spark.readStream.format("penstock").options(**source).load()
        rows = read.select(udf(lambda value: killed_once(value), "binary")("value").alias("value"))
        writing = rows.writeStream.format("penstock").trigger(availableNow=True)
        until_ended(writing.options(**sink, checkpointLocation=str(checkpoint)).start)

    def committed() -> list[int]:
        return sorted(int(row[1] or b"") for row in cluster.consume("after", 1, count))

    with pytest.raises(StreamingQueryException):
        run()
    run()
    assert committed() == list(range(100))
    batch_ids = sorted(
        int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()
    )
    assert len(batch_ids) > HAS_LIMITS
    # Leave the checkpoint as if the driver had been killed between the commit of the sink and its
    # own commit.
    for name in (
        str(batch_ids[-1]),
        f".{batch_ids[-1]}.crc",
    ):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    cluster.produce([{"topic": "before", "partition": 0, "value": b"100"}])
    count += 1
    run()
    if not HAS_LIMITS:  # here Spark runs one micro-batch per start: the interrupted one
        run()
    assert committed() == list(range(101)), (
        "a batch that was written twice would be visible before the last record"
    )
    assert cluster.keys("staged/") == set()
