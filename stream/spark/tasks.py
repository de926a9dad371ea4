"""What an executor does: read its slices to their end, leave out rows that were not asked for.

Invariants: those of `stream.reader.renew`: every offset of the slices is given once, or there is an error that names it. A loss is an error
unless `failOnDataLoss` is false.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from stream.errors import StreamError
from stream.manifest.errors import OffsetsMissing, TopicReplaced, UnknownPartition
from stream.reader.slices import Slice
from stream.spark.cluster import SparkCluster
from stream.spark.errors import DataLoss
from stream.spark.filters import Pushed

if TYPE_CHECKING:
    from stream.reader.arrow import RecordBatch

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TaskReader:
    """The same for all tasks of a query. Pickled once."""

    cluster: SparkCluster
    columns: tuple[str, ...]
    pushed: Pushed
    fail_on_data_loss: bool
    retry_interval_ms: int
    read_committed: bool

    def read(self, slices: Sequence[Slice]) -> Iterator["RecordBatch"]:
        """Raises ReadError (damage), DataLoss, ObjectGone if objects go faster than plans are renewed."""
        from stream.reader.renew import read_renewed  # Arrow: for those who read, not for those who plan
        from stream.spark.rows import chosen

        conditions, young_ms = self.pushed.of_rows, self.pushed.timestamp_from_ms
        batches = read_renewed(
            self.cluster,
            slices,
            self.columns,
            committed=self.read_committed,
            min_timestamp_ms=young_ms,
            pause_ms=self.retry_interval_ms,
            lost=self._lost,
        )
        with closing(batches):
            try:
                for batch in batches:
                    rows = chosen(batch, conditions)
                    if rows.num_rows:
                        yield rows
            except OffsetsMissing as error:
                raise DataLoss(f"Could not read records: {error}.") from None

    def _lost(self, error: StreamError) -> None:
        reason = f"Could not read records: {error}."
        if isinstance(error, UnknownPartition):
            reason = f"Partitions of {error.topic} have been deleted: {error}."
        elif isinstance(error, TopicReplaced):
            reason = f"Topics have been deleted and created again while they were read: {error.topic}."
        if self.fail_on_data_loss:
            raise DataLoss(reason)
        _log.warning("data_loss", reason=reason)
