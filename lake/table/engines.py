"""Engines that run tasks: threads of this process, or Spark (`DataFrame.mapInArrow`).

Every task returns its result exactly once, or an error is raised; results of repeated attempts are
dropped with their file names. Threads use all cores for raw values, because the decoder and Arrow
release the GIL; other formats are decoded in Python.
"""

import os
import pickle
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol, TypeVar

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
Job = Callable[[_Task, Callable[[], str]], _Result]


class Engine(Protocol):
    def map(self, job: Job[_Task, _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """Yield the results in the order of completion."""
        ...

    def close(self) -> None: ...


def new_attempt() -> str:
    """Return a unique part of file names for this attempt."""
    return uuid.uuid4().hex[:12]


class InlineEngine:
    """Run tasks one after another in the calling thread, for callers that run several batches."""

    def map(self, job: Job[_Task, _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        for task in tasks:
            yield job(task, new_attempt)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class LocalEngine:
    """Run tasks in `threads` threads, each with the memory of its open files (`files`)."""

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads or os.cpu_count() or 1

    def map(self, job: Job[_Task, _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-job") as pool:
            running = [pool.submit(job, task, new_attempt) for task in tasks]
            try:
                for done in as_completed(running):
                    yield done.result()
            finally:
                for task in running:
                    task.cancel()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SparkEngine:
    """Run tasks in Spark. `master` is as for spark-submit; if it is empty, the environment decides,
    or local[*]. Executors need this package installed.
    """

    def __init__(self, master: str) -> None:
        # Otherwise workers run another Python, without our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        from pyspark.sql import SparkSession

        self._is_ours = SparkSession.getActiveSession() is None
        builder: Any = SparkSession.builder
        builder = (
            builder.appName("penstock")
            .config("spark.ui.enabled", "false")
            .config("spark.speculation", "false")
        )
        if master:
            builder = builder.master(master)
        self._session: Any = builder.getOrCreate()

    def map(self, job: Job[_Task, _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        from penstock.lake.arrow.pyarrow_untyped import pa

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for task in batch.column(0):
                    result = job(pickle.loads(task.as_py()), new_attempt)  # noqa: S301 - from the driver
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([pickle.dumps(result)], pa.binary())], ["result"]
                    )

        rows = [(bytearray(pickle.dumps(task)),) for task in tasks]
        plan = self._session.createDataFrame(rows, "task binary").repartition(len(rows))
        with warnings.catch_warnings():  # about pandas, which mapInArrow does not use
            warnings.filterwarnings(
                "ignore", "PySpark does not yet fully support pandas", FutureWarning
            )
            found = plan.mapInArrow(run, "result binary").collect()
        for row in found:
            yield pickle.loads(bytes(row.result))  # noqa: S301 - from our executors

    def close(self) -> None:
        if self._is_ours:
            self._session.stop()
