"""The classes that Spark calls for `spark.read.format("penstock")` and
`spark.readStream.format("penstock")`. Writers are in `lake/spark/sink`.

Source: `pyspark.sql.datasource` of 4.3; Spark `KafkaBatch`, `KafkaMicroBatchStream`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.base.log import get_logger
from penstock.lake.fetch.slices import PLACE_COLUMNS, Slice
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark import ranges
from penstock.lake.spark.cluster import Found, SparkCluster
from penstock.lake.spark.errors import DataLoss, OffsetsMismatch
from penstock.lake.spark.filters import Pushed
from penstock.lake.spark.limit_types import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    check_supported,
)
from penstock.lake.spark.limits import (
    available_rows,
    limit_bytes,
    limit_rows,
    must_wait,
)
from penstock.lake.spark.offsets import (
    Offsets,
    OffsetsJson,
    TopicPartition,
    from_json,
    scala_set,
    to_json,
    topic_ids_of,
)
from penstock.lake.spark.options import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Limit,
    ReadOptions,
    check_common,
    columns_in,
    is_volatile,
    parse,
    warnings,
)
from penstock.lake.spark.packing import TaskLimits, pack
from penstock.lake.spark.pushdown import OfferedFilters, split_filters
from penstock.lake.spark.schema import checked_columns, source_schema
from penstock.lake.spark.starts import QueryStart
from penstock.lake.spark.tables import (
    check_insert,
    options_for,
    table_options,
    with_options,
)
from penstock.lake.spark.tasks import TaskReader, ranges_of_partitions, task_of
from penstock.stream.format.manifest.model import split_name

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from penstock.lake.arrow.pyarrow_untyped import RecordBatch
    from penstock.lake.spark.sink.writers import BatchWriter, StreamWriter

_log = get_logger(__name__)

VIEW_FRESH_S: Final = 5.0
"""Maximum age of a manifest view that is used for planning. Objects are kept for at least a minute
after they are replaced.
"""


def register(spark: SparkSession) -> None:
    """Register the source. This is not necessary if `pyspark_penstock` is on the path. Also enable
    filter pushdown, which is off by default.
    """
    try:
        spark.dataSource.register(PenstockSource)
    except AnalysisException as error:
        # Spark 4.0 rejects registering a source that it has already found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# Invariants: rows depend only on the offset range, so a replayed micro-batch is identical. The
# start offsets of a streaming query are determined once. Constructors only validate options,
# because Spark creates and pickles these objects in several processes. Only the sink connects to
# brokers.
class PenstockSource(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        table = table_options(self._options)
        options = table or self._options
        check_common(options)
        schema = source_schema(
            columns_in(options), include_headers=options.get("includeheaders", "").lower() == "true"
        )
        return with_options(schema, table) if table else schema

    def reader(self, schema: StructType) -> "BatchReader":
        return BatchReader(_Query(options_for(schema, self._options), schema, streaming=False))

    def streamReader(self, schema: StructType) -> "StreamReader":
        return StreamReader(_Query(options_for(schema, self._options), schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from penstock.lake.spark.sink.writers import BatchWriter

        check_insert(self._options)
        return BatchWriter(self._options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from penstock.lake.spark.sink.writers import StreamWriter

        return StreamWriter(self._options, schema, overwrite=overwrite)


class _Query:
    """The common part of batch and streaming readers: options, the cluster, and the handling of
    losses.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, streaming: bool) -> None:
        self.options: ReadOptions = parse(options, streaming=streaming)
        self.columns = checked_columns(schema)
        self.cluster = SparkCluster(
            self.options.store, self.options.cluster, self.options.wal_store, self.options.tail
        )
        self.lease_id = uuid4()
        self.notes = warnings(options, streaming=streaming)

    def find(self, *, missing_ok: bool = False) -> Found:
        """Return topics and bounds from a fresh view. A missing topic is looked up again, because a
        new topic is in the manifest within a second.
        """
        options = self.options
        for tries_left in reversed(range(options.retries)):
            try:
                return self.cluster.find(
                    options.topics, read_committed=options.read_committed, missing_ok=missing_ok
                )
            except OffsetsMismatch:
                if not tries_left:
                    raise
            time.sleep(options.retry_interval_ms / 1_000)
        raise AssertionError("the last attempt raises")

    def find_since(self, known: Offsets, *, missing_ok: bool = False) -> Found:
        """Return a fresh view that includes the known offsets if possible, because a manifest may
        lag behind the offsets that this query has read or the user requires.
        """
        options, found = self.options, self.find(missing_ok=missing_ok)
        for _ in range(options.retries - 1):
            if not ranges.beyond(known, ranges.ends(found.bounds)):
                break
            time.sleep(options.retry_interval_ms / 1_000)
            found = self.find(missing_ok=missing_ok)
        return found

    @staticmethod
    def check_assigned(limit: Limit, found: Found, *, starting: bool) -> None:
        """Raise OffsetsMismatch if a limit specifies other partitions than the existing ones."""
        if isinstance(limit, AtOffsets):
            ranges.check_assigned(limit.offsets, found.bounds)
            ranges.check_same_topics(limit.topic_ids, found.topic_ids)
        elif isinstance(limit, AtTimestamps):
            ranges.check_timestamps_assigned(
                limit.timestamps_ms, found.bounds, "start" if starting else "end"
            )

    def resolve(self, limit: Limit, found: Found, *, starting: bool) -> dict[TopicPartition, int]:
        """Resolve a limit to offsets, of all partitions if `check_assigned` has succeeded."""
        bounds = found.bounds
        if isinstance(limit, AtOffsets):
            return ranges.resolved(limit.offsets, bounds)
        if isinstance(limit, AtTimestamp | AtTimestamps):
            if isinstance(limit, AtTimestamps):
                times = limit.timestamps_ms
                wanted = {item: times[item] for item in times.keys() & bounds.keys()}
            else:
                wanted = dict.fromkeys(bounds, limit.timestamp_ms)
            offsets = self.cluster.first_offsets(wanted, bounds)
            matched = ranges.matched(
                offsets, wanted, latest_if_no_match=not starting or self.options.latest_if_no_match
            )
            return ranges.resolved(matched, bounds)
        return {
            item: bound.log_start if isinstance(limit, Earliest) else bound.end
            for item, bound in bounds.items()
        }

    def tasks(self, slices: Sequence[Slice]) -> list[InputPartition]:
        options = self.options
        limits = TaskLimits(
            bytes_max=options.max_bytes_per_task,
            rows_max=options.max_records_per_partition,
            tasks_min=options.min_partitions,
        )
        bodies, plain = self.cluster.bodies(slices), frozenset[int]()
        if slices and PLACE_COLUMNS.issuperset(self.columns):
            plain = self.cluster.plain(ranges_of_partitions(slices))
        return [InputPartition(task_of(part, bodies, plain)) for part in pack(slices, limits)]

    def task_reader(self, pushed: Pushed) -> TaskReader:
        options = self.options
        return TaskReader(
            self.cluster,
            self.columns,
            pushed,
            options.fail_on_data_loss,
            options.retry_interval_ms,
            options.read_committed,
            options.on_error,
        )

    def report(self, reason: str) -> None:
        """Raise DataLoss or log a warning, depending on `failOnDataLoss`."""
        if self.options.fail_on_data_loss:
            raise DataLoss(reason)
        _log.warning("data_loss", reason=reason)

    def take_lease(self, *, renewed: bool) -> None:
        if self.options.read_lease_ttl_ms:
            refused = self.cluster.take_lease(
                self.lease_id, self.options.read_lease_ttl_ms, renewed=renewed
            )
            if refused:
                _log.warning(
                    "read_lease_failed",
                    reason=refused,
                    hint="if objects are deleted in the meantime, their offsets are planned again",
                )

    def warn(self) -> None:
        notes, self.notes = self.notes, []
        for note in notes:
            _log.warning("spark_options", note=note)


class BatchReader(DataSourceReader):
    pushFilters: Any = OfferedFilters()

    def __init__(self, query: _Query) -> None:
        self._query = query
        self._pushed = Pushed()

    def take_filters(self, filters: "list[Filter]") -> "list[Filter]":
        conditions, left = split_filters(filters)
        self._pushed = Pushed(tuple(conditions))
        return left

    def partitions(self) -> list[InputPartition]:
        query, pushed = self._query, self._pushed
        query.warn()
        found = query.find_since(_required(query.options))
        query.take_lease(renewed=False)
        query.check_assigned(query.options.starting, found, starting=True)
        query.check_assigned(query.options.ending, found, starting=False)
        start = query.resolve(query.options.starting, found, starting=True)
        end = query.resolve(query.options.ending, found, starting=False)
        wanted = ranges.batch_ranges(start, end, found.bounds, query.report)
        chosen = [
            _narrowed(item, pushed)
            for item in wanted
            if pushed.selects(split_name(item.topic)[0], item.partition)
        ]
        return query.tasks(
            query.cluster.plan(
                [item for item in chosen if item.start_offset < item.end_offset],
                pushed.times.oldest_ms,
            )
        )

    def read(self, partition: InputPartition | None) -> Iterator["RecordBatch"]:
        # For an empty plan, Spark 4.0 and 4.1 pass None, and newer versions an empty partition.
        task = None if partition is None else partition.value
        return self._query.task_reader(self._pushed).read(task)


def _required(options: ReadOptions) -> dict[TopicPartition, int]:
    """Return the offsets that the manifest must reach for this batch query."""
    given = [
        limit.offsets
        for limit in (options.starting, options.ending)
        if isinstance(limit, AtOffsets) and not options.topics.snapshot
    ]
    return {item: max(some.get(item, 0) for some in given) for some in given for item in some}


def _narrowed(item: OffsetRange, pushed: Pushed) -> OffsetRange:
    start, end = pushed.offsets(item.start_offset, item.end_offset)
    return item._replace(start_offset=start, end_offset=end)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader. One instance exists for the whole query, in a separate process; Spark
    creates others to read.
    """

    def __init__(self, query: _Query) -> None:
        check_supported(query.options)
        self._query = query
        self._topic_ids: dict[str, str] = {}
        """Topic ids by name, for topics whose offsets do not include an id."""
        self._initial: OffsetsJson | None = None
        self._is_assumed = False
        """Whether the start is not stored and its partitions have not been checked. After a crash
        in the first micro-batch, partitions may have been added since, so only `latestOffset` of
        the first run checks them. Kafka's source stores its start, which it does not check again.
        """
        self._latest: dict[TopicPartition, int] = {}
        self._end: OffsetsJson | None = None
        """The end of the last micro-batch that this process planned, or of the checkpoint."""
        self._found: Found | None = None
        self._found_s = float("-inf")
        self._frozen: dict[TopicPartition, int] | None = None
        self._frozen_ids: dict[str, str] = {}
        self._is_frozen_used = False
        self._last_batch_s = float("-inf")
        self._leased_s = float("-inf")

    # --- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> OffsetsJson:
        """Return the start offsets. They are determined only once, even if the query fails before
        the first micro-batch is committed.
        """
        if self._initial is None:
            self._query.warn()
            stored = self._start()
            initial = stored.load() if stored else None
            if initial is None:
                found, starting = self._query.find(), self._query.options.starting
                if stored:
                    self._query.check_assigned(starting, found, starting=True)
                topic_ids = found.topic_ids
                if isinstance(starting, AtOffsets):
                    topic_ids = {**topic_ids, **starting.topic_ids}
                offsets = to_json(self._query.resolve(starting, found, starting=True), topic_ids)
                initial = stored.decide(offsets) if stored else offsets
                self._is_assumed = not stored
            self._check_own(initial)
            self._initial = initial
        return self._initial

    def _check_own(self, stored: OffsetsJson) -> None:
        """Raise OffsetsMismatch for a stored start with topics that this query does not read."""
        options = self._query.options
        if other := {
            item.topic for item in from_json(stored) if not options.topics.selects(item.topic)
        }:
            where = (
                f"queryId {options.query_id!r}" if options.query_id else "initialOffsetsLocation"
            )
            raise OffsetsMismatch(
                f"{where} contains the start of a query that reads other topics:"
                f" {', '.join(sorted(other))}. Each query needs its own"
            )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit, because Spark cannot combine limits for Python sources. `latestOffset`
        also applies the others.
        """
        options = self._query.options
        if options.min_offsets_per_trigger is not None and self._frozen is None:
            return ReadMinRows(options.min_offsets_per_trigger)
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        found = self._query.find(missing_ok=True)
        self._frozen, self._frozen_ids = ranges.ends(found.bounds), found.topic_ids

    def latestOffset(
        self, start: OffsetsJson | None = None, limit: ReadLimit | None = None
    ) -> OffsetsJson:
        """Return the end of the next micro-batch.

        Spark 4.0 and 4.1 pass no arguments. Before the first call, they plan the end of the
        checkpoint (see `partitions`). Without a checkpoint, they request the start after the end,
        so determine the start here first; otherwise, `latest` might be beyond the end.
        """
        if start is None:
            start = self.initialOffset() if self._end is None else self._end
        found = self._find_since(start)
        if self._is_assumed and self._end is None:
            self._query.check_assigned(self._query.options.starting, found, starting=True)
        self._is_assumed = False
        unread = set(self._query.options.topics.names) - found.topic_ids.keys() - start.keys()
        if unread and self._query.options.fail_on_data_loss:
            self._query.find()  # raises an error unless the topics were just created
        latest, topic_ids = ranges.ends(found.bounds), found.topic_ids
        if self._frozen is not None:
            self._is_frozen_used = True
            latest, topic_ids = self._frozen, self._frozen_ids
        begin = self._offsets_in(topic_ids, start)
        if self._frozen is not None:
            # The view at the start of the run may be older than the start of the query.
            outdated = ranges.beyond(begin, latest) & found.bounds.keys()
            latest = latest | {item: found.bounds[item].end for item in outdated}
            self._frozen = latest
        for item in sorted(begin.keys() & latest.keys()):
            if latest[item] < begin[item]:
                self._query.report(ranges.changed(item, begin[item], latest[item]))
                # Offsets never decrease: these rows have already been returned.
                latest = latest | {item: begin[item]}
        self._latest = latest
        if missing := begin.keys() - latest.keys():
            self._query.report(f"Partitions {scala_set(missing)} have been deleted.")
        end: Offsets | None = latest
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            end = self._limited(begin, latest, found)
        return start if end is None else to_json(end, topic_ids)

    def reportLatestOffset(self) -> OffsetsJson | None:
        """Return the latest offsets. Spark's progress reports them together with the end of the
        micro-batch.
        """
        return to_json(self._latest) if self._latest else None

    def _limited(
        self, start: Offsets, latest: dict[TopicPartition, int], found: Found
    ) -> dict[TopicPartition, int] | None:
        """Return the end of a micro-batch, or None if it waits for more rows."""
        options = self._query.options
        starts = dict(latest) | ranges.new_starts(start, found.bounds)
        now = time.monotonic()
        if self._frozen is None and options.min_offsets_per_trigger is not None:
            rows = available_rows(starts, latest)
            if must_wait(
                rows,
                options.min_offsets_per_trigger,
                (now - self._last_batch_s) * 1_000,
                options.max_trigger_delay_ms,
            ):
                return None
            self._last_batch_s = now
        end = latest
        if options.max_offsets_per_trigger is not None:
            end = limit_rows(options.max_offsets_per_trigger, starts, end)
        if options.max_bytes_per_trigger is not None:
            end = limit_bytes(
                options.max_bytes_per_trigger, self._slices_of(starts, end, found), end
            )
        return end

    def _slices_of(
        self, start: Offsets, end: Offsets, found: Found
    ) -> dict[TopicPartition, list[Slice]]:
        """Return the slices needed to apply the byte limit. The plan reports deleted offsets."""
        wanted = [
            OffsetRange(*item, max(start[item], bound.log_start), min(end[item], bound.end))
            for item, bound in found.bounds.items()
            if item in end and start[item] < end[item]
        ]
        by_partition: dict[TopicPartition, list[Slice]] = {}
        for part in self._query.cluster.plan(wanted):
            by_partition.setdefault(TopicPartition(part.topic, part.partition), []).append(part)
        return by_partition

    # --- micro-batches ----------------------------------------------------------------------------

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """Plan only from start and end, because after a crash Spark calls no other method.

        Spark 4.0 and 4.1 pass the last offsets of a checkpoint as both start and end. A manifest
        that ends before them is not a data loss here; `latestOffset` waits for a newer one.
        """
        query = self._query
        self._end = end
        if start == end:
            return []
        found = self._found_for(end) or self._find_since(end)
        if self._frozen is not None and self._is_frozen_used:
            ranges.check_frozen(self._frozen, from_json(end), ranges.ends(found.bounds))
        begin = self._offsets_in(topic_ids_of(end), start)
        stop = self._offsets_in(found.topic_ids, end)
        if start == self._initial and self._start() is None:
            # The start is not stored. After a crash in the first micro-batch, it is determined
            # again, and may include partitions that were added since.
            planned = from_json(end)
            begin = {item: offset for item, offset in begin.items() if item in planned}
            if is_volatile(query.options.starting):  # accepted with allowVolatileStart
                begin = {item: min(offset, planned[item]) for item, offset in begin.items()}
        self._renew_lease()
        return query.tasks(
            query.cluster.plan(ranges.stream_ranges(begin, stop, found.bounds, query.report))
        )

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        return self._query.task_reader(Pushed()).read(partition.value)

    def commit(self, end: OffsetsJson) -> None:
        """Do nothing, because Spark calls this late or never."""

    def stop(self) -> None:
        if self._leased_s > float("-inf"):
            self._query.cluster.release(self._query.lease_id)

    # --- what is there ----------------------------------------------------------------------------

    def _found_for(self, end: OffsetsJson) -> Found | None:
        """Return the view of the last `latestOffset` if it is sufficient: a new view would take as
        long as the first one and delay every record.
        """
        found = self._found
        if found is None or time.monotonic() - self._found_s > VIEW_FRESH_S:
            return None
        reaches = all(
            item in found.bounds and offset <= found.bounds[item].end
            for item, offset in from_json(end).items()
        )
        return found if reaches else None

    def _find_since(self, known: OffsetsJson) -> Found:
        """Return a fresh view that includes the known offsets if possible, and store it."""
        began_s = time.monotonic()
        self._found = self._query.find_since(from_json(known), missing_ok=True)
        self._found_s = began_s
        return self._found

    def _offsets_in(
        self, topic_ids: Mapping[str, str], offsets: OffsetsJson
    ) -> dict[TopicPartition, int]:
        """Return the offsets without recreated topics, which are read from their start. Report
        these topics as a loss.
        """
        known = self._known_ids(topic_ids, topic_ids_of(offsets))
        other = {
            name: (known[name], topic_id)
            for name, topic_id in topic_ids.items()
            if name in offsets and known[name] != topic_id
        }
        if other:
            self._query.report(ranges.recreated(other))
        return {item: to for item, to in from_json(offsets).items() if item.topic not in other}

    def _known_ids(self, topic_ids: Mapping[str, str], known: dict[str, str]) -> dict[str, str]:
        """Return the ids of all these topics. Older checkpoints do not contain ids; for these, use
        the ids that were stored with the start or seen at the first read.
        """
        new = topic_ids.keys() - known.keys() - self._topic_ids.keys()
        if new:
            stored = self._start()
            first = {name: topic_ids[name] for name in new}
            self._topic_ids |= first | (stored.topic_ids(sorted(new)) if stored else {})
        return self._topic_ids | known

    def _start(self) -> QueryStart | None:
        options = self._query.options
        if not options.query_id and not options.initial_offsets_location:
            return None
        return QueryStart(self._query.cluster, options.query_id, options.initial_offsets_location)

    def _renew_lease(self) -> None:
        """Acquire one lease for the query, and renew it after half of its duration. It protects at
        least the objects that this micro-batch needs.
        """
        now = time.monotonic()
        if now - self._leased_s > self._query.options.read_lease_ttl_ms / 2_000:
            self._query.take_lease(renewed=self._leased_s > float("-inf"))
            self._leased_s = now
