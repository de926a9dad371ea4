"""Programs that run a table runner: one is killed before its second commit, and tasks of the other
wait until the test lets a batch continue.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.lake.table import engines
from tests.support.waiting import PATIENCE_S

KILLED = """
import os, pickle, signal, sys
from dataclasses import dataclass
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.table.runner import RunnerOptions, TableRunner
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.topic_export import Exports
from penstock.lake.table.warehouse import Warehouse
from tests.support.table_runs import Watched, nothing

store_url, place = pickle.load(sys.stdin.buffer)
count = 0
def die(_):
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
class Killing(Warehouse):
    def table(self, name, layout):
        return Watched(super(Killing, self).table(name, layout), die, nothing)
given = {name: getattr(place, name) for name in place.__dataclass_fields__}
source = StoreCluster(store_url)
exports = Exports(source, Killing(**given), SyncOptions())
TableRunner(source, exports.open, RunnerOptions(workers=1, once=True)).run()
"""


@dataclass(frozen=True)
class GatedJob:
    """A job that has written its files; it returns their names once the file `go-BATCH` exists."""

    job: Any
    directory: str

    def __call__(self, task: Any, attempt: Callable[[], str]) -> Any:
        result = self.job(task, attempt)
        batch = task.name.rpartition("-")[2]
        Path(self.directory, f"{batch}-waiting-{os.getpid()}").touch()
        deadline = time.monotonic() + PATIENCE_S
        while not Path(self.directory, f"go-{batch}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return result


class GatedSparkEngine(engines.SparkEngine):
    def map(self, job: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        return super().map(GatedJob(job, os.environ["GATES"]), tasks)


def run_gated_command() -> None:
    """Run `penstock` with a gate before each batch, using Spark for batches of any size."""
    from penstock.deploy.cli.__main__ import main

    engines.SparkEngine = GatedSparkEngine
    engines.LargeBatchEngine = partial(engines.LargeBatchEngine, bytes_min=1)
    main()


if __name__ == "__main__":
    sys.exit(run_gated_command())
