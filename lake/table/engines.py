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
from typing import Any, Final, Protocol, TypeVar

from penstock.lake.table.errors import EngineLost

LARGE_BYTES: Final = 32 << 20
"""Below this size of the log, a single thread writes a batch sooner than a Spark job does."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
Job = Callable[[_Task, Callable[[], str]], _Result]


class Engine(Protocol):
    def map(self, job: Job[_Task, _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """Yield the results in the order of completion."""
        ...

    def close(self) -> None: ...


def new_attempt() -> str:
    """Return a string that makes the file names of this attempt unique."""
    return uuid.uuid4().hex[:12]


class InlineEngine:
    """Runs tasks one after another in the calling thread, for callers that run several batches."""

    def map(self, job: Job[_Task, _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        for task in tasks:
            yield job(task, new_attempt)

    def close(self) -> None:
        """Do nothing, because there is nothing to close."""


class LocalEngine:
    """Runs tasks in `threads` threads. Each of them needs memory for its open files (`files`)."""

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
        """Do nothing, because there is nothing to close."""


class SparkEngine:
    """Runs tasks in Spark. `master` is as for spark-submit; if it is empty, the environment
    determines it, or local[*] is used. Executors need this package installed.
    """

    def __init__(self, master: str) -> None:
        # Otherwise, workers may run a different Python, without the installed packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        from pyspark.sql import SparkSession

        self._is_ours = SparkSession.getActiveSession() is None
        self._is_lost = False
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
        try:
            plan = self._session.createDataFrame(rows, "task binary").repartition(len(rows))
            with warnings.catch_warnings():  # a warning about pandas, which mapInArrow does not use
                warnings.filterwarnings(
                    "ignore", "PySpark does not yet fully support pandas", FutureWarning
                )
                found = plan.mapInArrow(run, "result binary").collect()
        except Exception as error:
            self._check(error)
            raise
        for row in found:
            yield pickle.loads(bytes(row.result))  # noqa: S301 - from our executors

    def _check(self, cause: Exception) -> None:
        """Raise EngineLost if the application has ended. This property requires a running
        application.
        """
        try:
            self._session.sparkContext.defaultParallelism  # noqa: B018
        except Exception:  # noqa: BLE001 - of py4j or of the JVM
            self._is_lost = True
            reason = str(cause).partition("\n")[0] or type(cause).__name__
            raise EngineLost(f"the Spark application has ended: {reason}") from cause

    def close(self) -> None:
        if self._is_ours and not self._is_lost:
            self._session.stop()


class LargeBatchEngine:
    """Runs several tasks in another engine if together they process at least `bytes_min` of the log
    or of files, and all other tasks in the calling thread.
    """

    def __init__(self, engine: Engine, bytes_min: int = LARGE_BYTES) -> None:
        self._large = engine
        self._bytes_min = bytes_min
        self._small = InlineEngine()

    def map(self, job: Job[_Task, _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        is_large = len(tasks) > 1 and sum(map(_bytes_of, tasks)) >= self._bytes_min
        return (self._large if is_large else self._small).map(job, tasks)

    def close(self) -> None:
        self._large.close()


def _bytes_of(task: Any) -> int:  # noqa: ANN401 - tasks of exports and compactions
    return int(task.size_bytes)
