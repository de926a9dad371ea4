"""Implement `scan`: a topic, or a range of it, as Arrow batches from the store alone. For pandas,
Polars, DuckDB and other programs.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import index
from typing import Final, Literal, SupportsIndex, TypeAlias
from uuid import UUID, uuid4

from penstock.base.log import get_logger
from penstock.lake.arrow.cluster import StoreCluster, check_tail
from penstock.lake.arrow.columns import DEFAULT, arrow_schema
from penstock.lake.arrow.count import count_records
from penstock.lake.arrow.pyarrow_untyped import (
    RecordBatch,
    RecordBatchReader,
    Schema,
    Table,
    pa,
)
from penstock.lake.arrow.renew import plan_streams, ranges_of, read_renewed
from penstock.lake.arrow.row_times import rows_within
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.fetch.unreadable import (
    SKIP,
    OnUnreadable,
    UnreadableRecords,
    check_on_error,
    raise_unreadable,
)
from penstock.lake.manifest.errors import (
    OffsetsLost,
    OffsetsMissing,
    TooManyLeases,
    UnknownPartition,
)
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import PartitionOffsets
from penstock.objectstore.errors import ObjectStoreError
from penstock.stream.format.manifest.model import ManifestRoot, in_snapshot

_log = get_logger(__name__)

Place: TypeAlias = str | int | datetime | Mapping[int, int]
"""A position in each partition: `earliest`, `latest`, an offset, a datetime (the first record that
is not older), or an offset for each partition.
"""

LEASE_AFTER_S: Final = 30.0
"""A pass that takes longer acquires a lease. Before that, its objects are protected by the deletion
grace period of one minute, so that short passes need no PUT.
"""

LEASE_TTL_MS: Final = 600_000
LEASE_RENEW_S: Final = 200.0
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def scan(
    store_url: str,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: Place = "earliest",
    end: Place = "latest",
    columns: Sequence[str] | None = None,
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    since: datetime | None = None,
    until: datetime | None = None,
    snapshot: str = "",
    views: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    cluster_id: str = "",
    config: ReadConfig | None = None,
    wal_store: str = "",
    tail: Literal["all", "uploaded"] = "all",
) -> "Scan":
    """Read a topic, or a part of it, from the object store as Arrow record batches. No broker is
    contacted.

    This call fixes the offsets, so later records are not in the scan; iteration reads the data.
    Cost: one or two GETs for the manifest and one per live WAL; more only for timestamps.

    Args:
        store_url: The URL of the object store, as in `s3://BUCKET` or `file:DIR`.
        topic: The name of the topic.
        partitions: Partition numbers; by default those in `start` or `end`, or all.
        start: Start position: `earliest`, `latest`, an offset, a mapping from partition to offset,
            or a `datetime` with a time zone (the first record at or after it).
        end: End position, exclusive; in the same form as `start`.
        columns: Columns of Spark's Kafka source, such as `key`, `value` and `timestamp`; by default
            all except `headers`.
        isolation_level: `read_committed` ends at the last stable offset and skips aborted
            transactions, like Kafka's consumers.
        since: Skip records with an older timestamp, anywhere in the log.
        until: Skip records with this or a newer timestamp, anywhere in the log.
        snapshot: Read the topic as of this snapshot.
        views: Return key and value as `binary_view`, which saves a copy; see `ReadConfig.views`.
        on_error: For unreadable records: `raise`, or `skip` and list them in `Scan.unreadable`.
        cluster_id: The cluster; required only if the store contains several.
        config: Limits: rows and bytes of a batch, memory, requests in flight.
        wal_store: The URL of the WAL store, for clusters with the `wal.store` setting.
        tail: `uploaded`: end before the first record that is only in the WAL store, and ignore it.

    Returns:
        A `Scan`: iterate it, call `to_table`, or pass it to any reader of Arrow streams.

    Raises:
        ValueError: An argument is not allowed.
        UnknownPartition: The partition does not exist; new topics are visible after about 1 s.
        OffsetsLost: `start` is below the log start of a partition.
        OffsetsMissing: `end` is after the end of a partition.
        ManifestNotFound: The store contains no such cluster.
        SeveralClusters: The store contains several clusters and `cluster_id` is empty.
        WalStoreRequired, WalStoreWrong: `wal_store` is empty, or not the cluster's WAL store.
        ObjectStoreError: The URL is invalid, or the store cannot be read.

    Example:
        >>> polars.DataFrame(scan("s3://my-bucket", "orders", columns=["key", "value"])).height
        1000
    """
    topic = in_snapshot(topic, snapshot)
    chosen = DEFAULT if columns is None else tuple(columns)
    config = config or ReadConfig()
    config = replace(config, views=views or config.views)
    schema = arrow_schema(chosen, views=config.views)
    cluster = StoreCluster(store_url, cluster_id, wal_store, check_tail(tail, wal_store))
    committed, skips = _is_committed(isolation_level), check_on_error(on_error) == SKIP
    times = _times(since, until)
    states = _chosen(
        topic, cluster.partitions(topic, committed=committed), _numbers(partitions, start, end)
    )
    bounds = {state.partition: state.readable_end(committed=committed) for state in states}
    ranges = _ranges(cluster, states, bounds, start, end)
    streams = {(topic, state.partition): int(state.stream_id) for state in states}
    return Scan(
        cluster, ranges, streams, schema, config, committed=committed, times=times, skips=skips
    )


class Scan:
    """A fixed range of offsets of each partition, returned by `scan`.

    Iterate it, any number of times, or pass it to any reader of Arrow streams:
    `polars.DataFrame(scan)`, `duckdb.sql("SELECT count(*) FROM scan")`,
    `scan.to_table().to_pandas()`.

    Attributes:
        schema: The `pyarrow.Schema` of the batches.
        unreadable: The records that the last pass skipped with `on_error="skip"`: the `count` of
            offsets, and the first `errors`.

    Invariants: `scan` fixes the offsets when it is called: every pass returns the same rows, each
    offset once, in offset order within a partition, regardless of concurrent compaction. It
    includes every record acknowledged before the call (it reads WAL tails), unless
    `tail="uploaded"` ends it earlier. A long pass holds a lease; without one (a read-only store),
    it plans again if objects were deleted. With `isolation_level="read_committed"` it ends at the
    last stable offset and skips aborted transactions; by default it ignores transactions, like
    Kafka's consumers. Cost: one read of the manifest, then about three parts of input and one Arrow
    batch of memory.
    """

    def __init__(
        self,
        cluster: StoreCluster,
        ranges: Sequence[OffsetRange],
        streams: Mapping[tuple[str, int], int],
        schema: Schema,
        config: ReadConfig | None = None,
        *,
        committed: bool = False,
        times: TimeBounds = ALL_TIMES,
        skips: bool = False,
        on_unreadable: OnUnreadable | None = None,
    ) -> None:
        """Programs call `scan` instead. `streams` contains the stream ids of the partitions when
        the scan was created. With `skips`, unreadable records are skipped.
        """
        self._cluster = cluster
        self._ranges = tuple(ranges)
        self._streams = dict(streams)
        self._config = config
        self._committed = committed
        self._times = times
        self._skips = skips
        self._on_unreadable = on_unreadable
        self.schema = schema
        self.unreadable = UnreadableRecords()

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """Mapping from partition number to the first offset and the end offset, which is
        exclusive.
        """
        return {item.partition: (item.start_offset, item.end_offset) for item in self._ranges}

    def __iter__(self) -> Iterator[RecordBatch]:
        """Yield `pyarrow.RecordBatch`es, partition by partition, in offset order. Close the
        iterator if it is not exhausted.

        Raises:
            OffsetsLost: Retention removed records of the scan while it ran.
            TopicReplaced: The topic was deleted and created again during the scan.
            UnknownPartition: The topic was deleted during the scan.
            OffsetsMissing, ObjectStillMissing: The store has lost objects.
            ReadError: An object is damaged.
            ObjectStoreError: The store cannot be read.
        """
        return self.batches()

    def batches(self) -> Generator[RecordBatch, None, None]:
        """Iterate over the scan with a generator that can be closed."""
        on_unreadable = self._new_pass()
        slices = self._plan()
        if not slices:
            return
        names = list(self.schema.names)
        is_filtered = self._times.is_bounded
        batches = read_renewed(
            self._cluster,
            slices,
            [*names, "timestamp"] if is_filtered and "timestamp" not in names else names,
            self._config,
            committed=self._committed,
            times=self._times,
            bodies=self._cluster.bodies(slices),
            on_unreadable=on_unreadable,
        )
        with closing(batches), closing(ScanLease(self._cluster)) as lease:
            for batch in batches:
                rows = rows_within(batch, self._times).select(names) if is_filtered else batch
                if rows.num_rows:
                    yield rows
                lease.renew_if_due()

    def count(self) -> int:
        """Return the number of records that iteration yields, reading as little as possible.

        Without transactions, log compaction and time bounds, nothing is read: the manifest contains
        the count. Otherwise, most counts are in the indexes of objects; blocks are read in
        partitions with transactions, and where a block crosses a time bound. Lost or damaged
        objects that do not have to be read are not detected, and if a block is not read, unreadable
        records and those that repeat an offset of their batch are counted. With `on_error="skip"`,
        all records are read, so that skipped records are not counted.

        Raises:
            OffsetsLost, OffsetsMissing, TopicReplaced, UnknownPartition: As during iteration.
            ObjectStillMissing, ReadError, ObjectStoreError: As during iteration.
        """
        return sum(self.counts().values())

    def counts(self) -> dict[int, int]:
        """Return the number of records of each partition, determined like `count`. Raise the errors
        of `count`.
        """
        on_unreadable = self._new_pass()
        if self._skips:
            found = dict.fromkeys(self.offsets, 0)
            rows = self.narrowed(
                self.offsets, ("partition",), self._times, on_unreadable=on_unreadable
            ).batches()
            with closing(rows):
                for batch in rows:
                    for item in batch.column("partition").value_counts().to_pylist():
                        found[item["values"]] += item["counts"]
            return found
        slices = self._plan()
        return count_records(
            self._cluster,
            slices,
            self._cluster.plain(ranges_of(slices)),
            self._config,
            committed=self._committed,
            times=self._times,
            bodies=self._cluster.bodies(slices),
            on_unreadable=on_unreadable,
        )

    def narrowed(
        self,
        offsets: Mapping[int, tuple[int, int]],
        columns: Sequence[str],
        times: TimeBounds = ALL_TIMES,
        config: ReadConfig | None = None,
        on_unreadable: OnUnreadable | None = None,
    ) -> "Scan":
        """Return a scan of a part of this one: other columns, a range of offsets of each partition,
        and only records within `times`. `on_unreadable` is called for unreadable records; by
        default they are handled as in this scan.
        """
        config = config or self._config or ReadConfig()
        ranges: list[OffsetRange] = []
        for item in self._ranges:
            start, end = offsets.get(item.partition, (0, 0))
            low, high = max(start, item.start_offset), min(end, item.end_offset)
            if low < high:
                ranges.append(item._replace(start_offset=low, end_offset=high))
        return Scan(
            self._cluster,
            ranges,
            self._streams,
            arrow_schema(columns, views=config.views),
            config,
            committed=self._committed,
            times=times,
            skips=self._skips,
            on_unreadable=on_unreadable or self._on_unreadable,
        )

    def _new_pass(self) -> OnUnreadable:
        """Clear the unreadable records of the last pass, and return their handler."""
        self.unreadable = UnreadableRecords()
        skip = self.unreadable.add if self._skips else raise_unreadable
        return self._on_unreadable or skip

    def _plan(self) -> list[Slice]:
        ranges = [item for item in self._ranges if item.start_offset < item.end_offset]
        if not ranges:
            return []
        plan = partial(self._cluster.replan, timestamp_from_ms=self._times.oldest_ms)
        return plan_streams(plan, ranges, self._streams)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the scan with Arrow's PyCapsule protocol, for DuckDB, Polars, pandas and
        others.
        """
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> RecordBatchReader:
        """Return a `pyarrow.RecordBatchReader` that reads the scan once."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> Table:
        """Read everything into memory, as a `pyarrow.Table`."""
        return pa.Table.from_batches(iter(self), self.schema)

    def __repr__(self) -> str:
        places = ", ".join(
            f"{topic}-{partition} [{start}, {end})"
            for topic, partition, start, end in self._ranges[:4]
        )
        return f"Scan({places}{', ...' if len(self._ranges) > 4 else ''})"


class ScanLease:
    """The lease of one pass: created after a delay, renewed between batches, released at the end.
    It never raises, because a pass continues without it.
    """

    def __init__(self, cluster: StoreCluster, now_s: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._now_s = now_s
        self._root: ManifestRoot = cluster.root()
        self._due_s = now_s() + LEASE_AFTER_S
        self._lease_id: UUID | None = None

    def renew_if_due(self) -> None:
        if self._now_s() < self._due_s:
            return
        self._due_s = self._now_s() + LEASE_RENEW_S
        lease_id, is_held = self._lease_id or uuid4(), self._lease_id is not None
        try:
            self._cluster.lease(lease_id, self._root, LEASE_TTL_MS, "scan", renewed=is_held)
            self._lease_id = lease_id
        except (TooManyLeases, ObjectStoreError, TimeoutError) as error:
            _log.warning(
                "read_lease_failed",
                error=str(error),
                hint="if objects are deleted in the meantime, their offsets are planned again",
            )

    def close(self) -> None:
        if self._lease_id is not None:
            try:
                self._cluster.release(self._lease_id)
            except (ObjectStoreError, TimeoutError) as error:
                _log.warning(
                    "read_lease_release_failed", error=str(error), hint="the lease will expire"
                )


def _is_committed(isolation_level: str) -> bool:
    if isolation_level not in _ISOLATION_LEVELS:
        raise ValueError(f"isolation_level {isolation_level!r}: {' or '.join(_ISOLATION_LEVELS)}")
    return isolation_level == "read_committed"


def _times(since: datetime | None, until: datetime | None) -> TimeBounds:
    return TimeBounds(
        ALL_TIMES.from_ms if since is None else _not_before_ms(since),
        ALL_TIMES.to_ms if until is None else _not_before_ms(until) - 1,
    )


def _not_before_ms(moment: datetime) -> int:
    """Return the first millisecond at or after this time."""
    if getattr(moment, "tzinfo", None) is None:
        raise ValueError(f"{moment!r} is not a datetime, or has no time zone")
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _numbers(partitions: Sequence[int] | None, start: Place, end: Place) -> list[int] | None:
    """Return the requested partitions, or None for all."""
    if partitions is not None and len(set(partitions)) != len(partitions):
        raise ValueError(f"partitions {list(partitions)}: each may be listed only once")
    named = [set(item) for item in (start, end) if isinstance(item, Mapping)]
    if partitions is None and named:
        partitions = sorted(named[0])
    if partitions is not None and any(not set(partitions) <= item for item in named):
        raise ValueError(
            f"start and end must contain an offset for every partition of {sorted(partitions)}"
        )
    return None if partitions is None else sorted(partitions)


def _chosen(
    topic: str, states: Sequence[PartitionOffsets], numbers: Sequence[int] | None
) -> list[PartitionOffsets]:
    existing = {state.partition: state for state in states}
    for number in numbers or ():
        if number not in existing:
            raise UnknownPartition(topic, number)
    return [existing[number] for number in (sorted(existing) if numbers is None else numbers)]


def _ranges(
    cluster: StoreCluster,
    states: Sequence[PartitionOffsets],
    bounds: Mapping[int, int],
    start: Place,
    end: Place,
) -> list[OffsetRange]:
    starts, ends = (_offsets(cluster, states, bounds, place) for place in (start, end))
    return [
        _range(state, bounds[state.partition], low, high)
        for state, low, high in zip(states, starts, ends, strict=True)
    ]


def _offsets(
    cluster: StoreCluster, states: Sequence[PartitionOffsets], ends: Mapping[int, int], place: Place
) -> list[int]:
    """Return the offset of the position in each partition."""
    if place == "earliest":
        return [state.log_start for state in states]
    if place == "latest":
        return [ends[state.partition] for state in states]
    if isinstance(place, datetime):
        timestamp_ms = _not_before_ms(place)
        wanted = [
            (
                OffsetRange(state.topic, state.partition, state.log_start, ends[state.partition]),
                timestamp_ms,
            )
            for state in states
        ]
        found = cluster.first_at(wanted)
        return [
            ends[state.partition] if offset is None else offset
            for state, offset in zip(states, found, strict=True)
        ]
    if isinstance(place, Mapping):
        return [_offset_of(place[state.partition]) for state in states]
    if not isinstance(place, SupportsIndex):
        raise ValueError(
            f"{place!r} is not a position in a topic: use 'earliest', 'latest', an offset, a "
            "datetime, or {partition: offset}"
        )
    return [place] * len(states)


def _offset_of(given: SupportsIndex) -> int:
    try:
        return index(given)
    except TypeError:
        raise ValueError(f"{given!r} is not an offset: use an integer") from None


def _range(state: PartitionOffsets, readable_end: int, start: int, end: int) -> OffsetRange:
    """Return the range. Raise ValueError if it is invalid, OffsetsLost or OffsetsMissing if it is
    outside the current partition.
    """
    topic, partition = state.topic, state.partition
    if start < 0 or end < start:
        raise ValueError(f"{topic}-{partition}: [{start}, {end}) is not a range of offsets")
    if start < state.log_start:
        raise OffsetsLost(topic, partition, start, min(end, state.log_start), state.log_start)
    if end > readable_end:
        raise OffsetsMissing(topic, partition, max(start, readable_end), end)
    return OffsetRange(topic, partition, start, end)
