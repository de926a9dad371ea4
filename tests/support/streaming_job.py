"""Run a streaming query as a process that tests kill: `python -m tests.support.streaming_job JSON`.

Its sink is idempotent by batch id: the rows of a batch are written to one file named after the
batch. The rows of every attempt are kept as well.
"""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_session import limits
from tests.support.streaming_queries import until_ended

_WAIT_S = 900.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A query to run.

    die: ("before", 3): exit before the sink receives the rows of batch 3; ("after", 3): exit after
    it has received them. hold: the batch that the sink does not write: it creates a file `holding`,
    and the test kills the driver. gate: every task pauses in the middle of its rows until a file
    `go` exists. master: `local-cluster[...]` runs executors in separate processes.
    """

    store_url: str
    topic: str
    directory: str
    rows_per_batch: int
    die: tuple[str, int] | None = None
    hold: int | None = None
    gate: bool = False
    master: str = "local[2]"

    @property
    def checkpoint(self) -> Path:
        return Path(self.directory, "check")

    @property
    def out(self) -> Path:
        return Path(self.directory, "out")


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


def start(spark: Any, job: Job) -> Any:
    """Start the query. It ends when all records that exist now are in the sink."""
    options = {
        "store": job.store_url,
        "subscribe": job.topic,
        "startingOffsets": "earliest",
        "columns": "partition,offset,value",
        **limits(maxOffsetsPerTrigger=str(job.rows_per_batch)),
    }
    frame = spark.readStream.format("penstock").options(**options).load()
    if job.gate:
        with warnings.catch_warnings():  # warnings of a pandas version that mapInArrow does not use
            warnings.filterwarnings(
                "ignore", "PySpark does not yet fully support pandas", FutureWarning
            )
            frame = frame.mapInArrow(gated(job.directory), frame.schema)

    def sink(batch: DataFrame, batch_id: int) -> None:
        rows = sorted(
            [row["partition"], row["offset"], bytes(row["value"]).decode()]
            for row in batch.collect()
        )
        attempt = job.out / f"{batch_id}.{uuid4().hex}.attempt"
        attempt.write_text(json.dumps(rows))
        if job.hold == batch_id:
            Path(job.directory, "holding").touch()
            time.sleep(_WAIT_S)
        if job.die == ("before", batch_id):
            os.kill(os.getpid(), signal.SIGKILL)
        linked = attempt.with_suffix(".link")
        os.link(attempt, linked)
        linked.replace(job.out / f"{batch_id}.batch")
        if job.die == ("after", batch_id):
            os.kill(os.getpid(), signal.SIGKILL)

    job.out.mkdir(exist_ok=True)
    return (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(job.checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def main(job: Job) -> None:
    builder: Any = SparkSession.builder
    spark: Any = (
        builder.master(job.master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    Path(job.directory, f"jvm-{os.getpid()}").write_text(str(spark.sparkContext._gateway.proc.pid))
    until_ended(lambda: start(spark, job))
    spark.stop()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Job))
