"""Browse the records of a topic in the object store. This causes no load on brokers.

Limits: a search reads at most `SEARCHED_RECORDS_MAX` records and `SEARCHED_BYTES_MAX` bytes, ends
after `SEARCH_S_MAX`, and reports whether it was complete. Requires the `reader` extra. The methods
block.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any, Final

from penstock.base.extras import install_hint
from penstock.deploy.console.bucket import need_store
from penstock.deploy.console.formats import BytesView, shown_bytes
from penstock.deploy.errors import UsageError
from penstock.protocol.registry.wire_format import value_header

LIMITS: Final = (20, 50, 100)
STARTS: Final = ("newest", "earliest", "offset", "time")
SEARCHED_RECORDS_MAX: Final = 100_000
SEARCHED_BYTES_MAX: Final = 256 << 20
SEARCH_S_MAX: Final = 15.0
HEADERS_MAX: Final = 50
_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

Windows = dict[int, tuple[int, int]]
"""Offsets [start, end) by partition."""
Row = Mapping[str, Any]
Show = Callable[[str, bytes | None, bytes | None], BytesView]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSelection:
    """A query. partition: None for all. start: one of STARTS, with `offset` or `since`. key: only
    records with this key. value: only records whose value contains it. Empty: all.
    """

    topic: str
    partition: int | None = None
    start: str = "newest"
    offset: int = 0
    since: datetime | None = None
    key: str = ""
    value: str = ""
    limit: int = LIMITS[0]

    @property
    def is_filtered(self) -> bool:
        return bool(self.key or self.value)


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record. timestamp_ms: since 1970."""

    partition: int
    offset: int
    timestamp_ms: int
    key: BytesView
    value: BytesView
    headers: list[tuple[str, BytesView]]


@dataclass(frozen=True, slots=True)
class RecordsFound:
    """The result of a query. searched: number of records read. is_complete: whether all wanted
    offsets were read.
    """

    records: list[RecordView]
    searched: int
    is_complete: bool
    bounds: Windows
    problem: str = ""
    """A description of the records that were skipped because they cannot be read."""


def can_browse() -> bool:
    """Return whether the packages for reading records are installed."""
    return all(find_spec(name) is not None for name in ("numpy", "pyarrow"))


def find_records(
    store: str, query: RecordSelection, show: Show, *, wal_store: str = ""
) -> RecordsFound:
    """Return the records, newest first with `start="newest"`, otherwise oldest first. show: formats
    a "key" or a "value", with the header that may contain its schema.

    Raises UsageError, and the errors of `lake.arrow.topic_scan.scan`.
    """
    need_store(store)
    try:
        from penstock.lake.arrow.cluster import StoreCluster
        from penstock.lake.arrow.topic_scan import scan
    except ImportError as error:
        raise UsageError(
            f"this page needs the package {error.name}: {install_hint('reader')}"
        ) from None
    states = StoreCluster(store, wal_store_url=wal_store).partitions(query.topic)
    bounds = {
        state.partition: (state.log_start, state.high_watermark)
        for state in states
        if query.partition in (None, state.partition)
    }
    if not bounds:
        raise UsageError(f"{query.topic} has no partition {query.partition}")
    if query.start == "time" and query.since is not None:
        first = scan(
            store, query.topic, partitions=sorted(bounds), start=query.since, wal_store=wal_store
        ).offsets
        bounds = {index: (first[index][0], max(first[index])) for index in bounds}
    windows = windows_of(query, bounds)
    wanted = {index: window for index, window in windows.items() if window[0] < window[1]}
    if not wanted:
        return RecordsFound([], 0, True, bounds)
    batches = scan(
        store,
        query.topic,
        start={index: low for index, (low, _) in wanted.items()},
        end={index: high for index, (_, high) in wanted.items()},
        columns=_COLUMNS,
        on_error="skip",
        wal_store=wal_store,
    )
    rows, searched, is_complete = _search(query, iter(batches))
    problem = str(batches.unreadable) if batches.unreadable else ""
    views = [_view(row, show) for row in rows]
    return RecordsFound(views, searched, is_complete, bounds, problem)


def windows_of(query: RecordSelection, bounds: Mapping[int, tuple[int, int]]) -> Windows:
    """Return the offsets to read in each partition: as many as fit on a page or as a search may
    read. Pure.
    """
    each = max(1, SEARCHED_RECORDS_MAX // len(bounds)) if query.is_filtered else query.limit
    if query.start == "newest":
        return {index: (max(low, high - each), high) for index, (low, high) in bounds.items()}
    found: Windows = {}
    for index, (low, high) in bounds.items():
        begin = min(max(low, query.offset), high) if query.start == "offset" else low
        found[index] = (begin, min(high, begin + each))
    return found


def _search(query: RecordSelection, batches: Iterator[Any]) -> tuple[list[Row], int, bool]:
    """Return the rows of the records, the number of records read, and whether all were read."""
    from penstock.lake.arrow.row_times import for_python

    deadline = time.monotonic() + SEARCH_S_MAX
    newest = query.start == "newest"
    found: list[Row] = []
    searched = size_bytes = 0
    is_complete = True
    for batch in batches:
        searched += batch.num_rows
        size_bytes += batch.nbytes
        if chosen := _matching(query, batch):  # Arrow cannot infer the type of an empty list
            found += for_python(batch.take(chosen)).to_pylist()
        found.sort(key=lambda row: (row["timestamp"], row["offset"]), reverse=newest)
        del found[query.limit :]
        if size_bytes > SEARCHED_BYTES_MAX or time.monotonic() > deadline:
            is_complete = False
            break
    return found, searched, is_complete


def _matching(query: RecordSelection, batch: Any) -> list[int]:  # noqa: ANN401 - Arrow has no types
    """Return the indexes of the rows that match the query."""
    chosen = list(range(batch.num_rows))
    if query.key:
        key = query.key.encode()
        keys = batch.column("key").to_pylist()
        chosen = [at for at in chosen if keys[at] == key]
    if query.value:
        part = query.value.encode()
        values = batch.column("value").to_pylist()
        chosen = [at for at in chosen if values[at] is not None and part in values[at]]
    return chosen


def _view(row: Row, show: Show) -> RecordView:
    headers = row["headers"] or ()
    return RecordView(
        row["partition"],
        row["offset"],
        (row["timestamp"] - _EPOCH) // timedelta(milliseconds=1),
        show("key", row["key"], None),
        show("value", row["value"], value_header((item["key"], item["value"]) for item in headers)),
        [(item["key"], shown_bytes(item["value"])) for item in headers[:HEADERS_MAX]],
    )
