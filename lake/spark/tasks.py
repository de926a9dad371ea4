"""The tasks of executors: read slices, and drop rows that do not match the pushed filters.

Invariants, as in `lake.arrow.renew`: every offset of the slices is either returned once or
contained in an error. A loss is an error unless `failOnDataLoss` is false.
"""

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.base.errors import StreamError
from penstock.base.log import get_logger
from penstock.lake.fetch.errors import ObjectStillMissing
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.unreadable import RAISE, raise_unreadable
from penstock.lake.manifest.errors import OffsetsMissing, TopicReplaced, UnknownPartition
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark.cluster import SparkCluster
from penstock.lake.spark.errors import DataLoss
from penstock.lake.spark.filters import Pushed

if TYPE_CHECKING:
    from penstock.lake.arrow.pyarrow_untyped import RecordBatch

_log = get_logger(__name__)


BODIES_BYTES_MAX: Final = 1 << 20
"""Maximum size of the bodies in one task, which is pickled and sent by the driver."""


class _Frozen:
    """The modules that were imported at the last freeze."""

    module_count = 0


def freeze_modules() -> None:
    """Exclude imported modules from garbage collection. PySpark runs the collector after every
    task, and traversing Arrow, numba and pandas takes 50 to 100 ms, a sixth of the CPU time of a
    scan. Call this when a task begins: right after such a collection, only permanent objects exist.
    Source: `pyspark.daemon`, `gc.freeze`.
    """
    if len(sys.modules) != _Frozen.module_count:
        gc.freeze()
        _Frozen.module_count = len(sys.modules)


@dataclass(frozen=True, slots=True)
class Task:
    """Slices, and the bodies of objects that the planner has read completely, by key.

    WAL slots are small and numerous: without the bodies, a task would spend most of its time on
    GETs.
    """

    slices: tuple[Slice, ...]
    bodies: Mapping[str, bytes]
    is_known: bool = False
    """Whether the plan determines the topic, partition and offset of each row."""


def task_of(
    slices: Sequence[Slice], bodies: Mapping[str, bytes], plain: frozenset[int] = frozenset()
) -> Task:
    """Return a task. `plain`: the streams without transaction markers in these slices."""
    taken, left_bytes = dict[str, bytes](), BODIES_BYTES_MAX
    for part in slices:
        body = bodies.get(part.key)
        if body is not None and part.key not in taken and len(body) <= left_bytes:
            taken[part.key] = body
            left_bytes -= len(body)
    is_known = all(part.is_dense and part.stream_id in plain for part in slices)
    return Task(tuple(slices), taken, is_known)


def ranges_of_partitions(slices: Sequence[Slice]) -> list[OffsetRange]:
    """Return one range for each partition, from its first to its last slice."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for part in slices:
        low, high = found.get((part.topic, part.partition), (part.start_offset, part.end_offset))
        bounds = min(low, part.start_offset), max(high, part.end_offset)
        found[part.topic, part.partition] = bounds
    return [OffsetRange(*place, *bounds) for place, bounds in found.items()]


@dataclass(frozen=True, slots=True)
class TaskReader:
    """The reader of all tasks of a query. Pickled once."""

    cluster: SparkCluster
    columns: tuple[str, ...]
    pushed: Pushed
    fail_on_data_loss: bool
    retry_interval_ms: int
    read_committed: bool
    on_error: str = RAISE

    def read(self, task: Task | None) -> Iterator["RecordBatch"]:
        """Yield the rows of a task. For None, the partition that Spark creates for an empty plan,
        yield nothing.

        Raise ReadError (damage, and unreadable records unless they are skipped) or DataLoss.
        """
        # Imported here, because this loads Arrow, which planners do not need.
        from penstock.lake.arrow.place_rows import place_rows
        from penstock.lake.arrow.renew import log_skipped, read_renewed
        from penstock.lake.spark.rows import filter_rows

        if task is None:
            return
        freeze_modules()
        conditions = self.pushed.of_rows
        if task.is_known:
            for batch in place_rows(task.slices, self.columns):
                yield filter_rows(batch, conditions)
            return
        batches = read_renewed(
            self.cluster,
            task.slices,
            self.columns,
            committed=self.read_committed,
            times=self.pushed.times,
            pause_ms=self.retry_interval_ms,
            on_loss=self._on_loss,
            bodies=task.bodies,
            on_unreadable=raise_unreadable if self.on_error == RAISE else log_skipped,
        )
        with closing(batches):
            try:
                for batch in batches:
                    rows = filter_rows(batch, conditions)
                    if rows.num_rows:
                        yield rows
            except (OffsetsMissing, ObjectStillMissing) as error:
                raise DataLoss(f"Could not read records: {error}.") from None

    def _on_loss(self, error: StreamError) -> None:
        reason = f"Could not read records: {error}."
        if isinstance(error, UnknownPartition):
            reason = f"Partitions of {error.topic} have been deleted: {error}."
        elif isinstance(error, TopicReplaced):
            reason = (
                f"Topics have been deleted and created again while they were read: {error.topic}."
            )
        if self.fail_on_data_loss:
            raise DataLoss(reason)
        _log.warning("data_loss", reason=reason)
