"""Run user jobs on a Spark cluster: a batch query, a streaming query from topic to topic, and a
batch write. Tests copy this file next to an unpacked environment, whose Python runs it.

Prints JSON lines. A task of the streaming query waits in the middle of its rows until the file `go`
exists, and notes its process in `waiting-PID`.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

_WAIT_S = 900.0


def places(batches: Iterator[Any]) -> Iterator[Any]:
    """Return the row count of a task, and the path from which its process imported Penstock."""
    import pyarrow as pa

    from penstock import lake

    rows = sum(batch.num_rows for batch in batches)
    arrow: Any = pa
    yield arrow.RecordBatch.from_pylist([{"rows": rows, "file": lake.__file__}])


def gated(directory: str) -> Any:
    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            if not number:
                Path(directory, f"waiting-{os.getpid()}").touch()
                deadline = time.monotonic() + _WAIT_S
                while not Path(directory, "go").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.02)

    return wait


def say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def until_ended(writing: Any) -> Any:
    """Return the query after it has ended. On a busy machine, the Python process of its source may
    need longer to connect than Spark waits; then start it again.
    """
    while True:
        query = writing.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query


def main(master: str, archive: str, store: str, bootstrap: str) -> None:
    builder: Any = SparkSession.builder
    spark: Any = (
        builder.master(master)
        .config("spark.archives", f"{archive}#env")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "600m")
        .config("spark.executor.memory", "600m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    source = {"store": store, "subscribe": "in", "minPartitions": "2"}
    sink = {"kafka.bootstrap.servers": bootstrap, "store": store, "exactlyOnce": "true"}

    frame = spark.read.format("penstock").options(**source).load()
    found = frame.mapInArrow(places, "rows long, file string").collect()
    say(rows=sum(row["rows"] for row in found), files=sorted({row["file"] for row in found}))

    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    stream = spark.readStream.format("penstock").options(**source, **limits).load()
    writing = (
        stream.select("value")
        .mapInArrow(gated(str(Path.cwd())), "value binary")
        .writeStream.format("penstock")
        .options(**sink, topic="out", checkpointLocation=str(Path.cwd() / "check"))
        .trigger(availableNow=True)
    )
    query = until_ended(writing)
    say(batches=[step["numInputRows"] for step in query.recentProgress if step["numInputRows"]])

    totals = frame.groupBy("partition").count().selectExpr("CAST(count AS STRING) AS value")
    totals.write.format("penstock").mode("append").options(**sink, topic="totals").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
