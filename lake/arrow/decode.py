"""Decode blocks of Kafka record batches to Arrow: walk the headers, check every CRC, skip
unwanted batches, decompress, decode.

Source: Kafka `Fetcher`, `CompletedFetch`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import numpy as np
from crc32c import crc32c

from penstock.base.buffers import Buffer
from penstock.lake.arrow import decode_table as t
from penstock.lake.arrow import kernel_build
from penstock.lake.arrow.columns import DEFAULT, arrow_schema
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.arrow.row_times import count_within
from penstock.lake.fetch.errors import ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.fetch.unreadable import OnUnreadable, raise_unreadable
from penstock.protocol.batch.compression import Inflater
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    CRC_START,
    DELETE_HORIZON_MASK,
    NEWEST_UNKNOWN,
    OLDEST_UNKNOWN,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from penstock.protocol.batch.sound_records import BAD_CHECKSUM, sound_records
from penstock.stream.format.transaction_log import AbortedTransaction

_GROUP_BYTES: Final = 1 << 20
"""Approximate size of the decompressed batches that are decoded together. Larger groups would not
fit into the CPU cache, and smaller ones would require more calls.
"""

_OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """The offsets [start_offset, end_offset) of a block, and the wanted offsets [low, high)."""

    key: str
    topic: str
    partition: int
    start_offset: int = 0
    end_offset: int = _OFFSET_MAX
    low: int = 0
    high: int = _OFFSET_MAX


class Aborted:
    """The aborted transactions of one partition, whose batches are skipped."""

    __slots__ = ("_of",)

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._of: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, last_offset in sorted(transactions):
            firsts, lasts = self._of.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            lasts.append(last_offset)

    def __bool__(self) -> bool:
        return bool(self._of)

    def has(self, producer_id: int, base_offset: int) -> bool:
        """Return whether the batch belongs to an aborted transaction.

        Transactions of one producer do not overlap, so only the last one that began before the
        batch can include it.
        """
        firsts, lasts = self._of.get(producer_id, ((), ()))
        number = bisect_right(firsts, base_offset) - 1
        return number >= 0 and base_offset <= lasts[number]


_NOTHING_ABORTED: Final = Aborted()


def open_rows(
    columns: Sequence[str],
    config: ReadConfig,
    *,
    compiled: bool | None = None,
    size_bytes: int | None = None,
) -> t.Rows:
    """Return the compiled decoder if numba is installed, the kernels are ready and loading them
    pays off; otherwise the numpy decoder. `compiled` forces the choice.

    `size_bytes` is the size of the data to decode, whether compressed or not; None if it is
    unknown.
    """
    if (
        find_spec("numba") is not None and kernel_build.are_wanted(size_bytes)
        if compiled is None
        else compiled
    ):
        from penstock.lake.arrow.decode_buffers import CompiledRows

        return CompiledRows(columns, config)
    from penstock.lake.arrow.decode_numpy import NumpyRows

    return NumpyRows(columns, config)


class Decoder:
    """Decodes one block after another, from any partition; call `flush` at the end. Each task has
    one decoder, which serves one thread at a time.

    Invariant: rows depend only on the offset range and are returned in offset order, each offset
    once; a batch's records are returned only after its CRC matched. Any input results in rows or in
    a ReadError with object, partition and offsets, which is raised or passed to a callback; those
    offsets are then skipped. Control batches and batches of aborted transactions are never
    returned. Memory: one Arrow batch under construction, and decompressed batches of about
    `_GROUP_BYTES`. There is no I/O.
    """

    def __init__(
        self,
        columns: Sequence[str] = DEFAULT,
        config: ReadConfig | None = None,
        *,
        compiled: bool | None = None,
        size_bytes: int | None = None,
        on_unreadable: OnUnreadable = raise_unreadable,
    ) -> None:
        """See `open_rows` for `compiled` and `size_bytes`. Raise ValueError for columns that do not
        exist.
        """
        self._on_unreadable = on_unreadable
        config = config or ReadConfig()
        self.schema = arrow_schema(columns, views=config.views)
        self._views = config.views
        self._rows = open_rows(columns, config, compiled=compiled, size_bytes=size_bytes)
        self._inflater = Inflater(config.uncompressed_batch_bytes_max)
        self._table: t.Table = np.zeros((t.TABLE_ROWS, t.TABLE_COLUMNS), np.int64)

    def decode(
        self,
        data: Buffer,
        place: Place,
        aborted: Aborted = _NOTHING_ABORTED,
        times: TimeBounds = ALL_TIMES,
    ) -> Iterator[RecordBatch]:
        """Yield Arrow batches as they fill up; rows may remain until the next call or `flush`. The
        iterator must be exhausted before any other call.

        Batches without records within `times` may be skipped. Errors raised by `on_unreadable`
        propagate; the decoder is then unusable.
        """
        block = np.frombuffer(data, np.uint8)
        for wanted, attributes in self._wanted(block, place, aborted, times):
            yield from self._add(block, wanted, attributes, place)

    def count(self, data: Buffer, place: Place, aborted: Aborted, times: TimeBounds) -> int:
        """Return the number of wanted records. Only batches whose headers do not determine the
        number are decoded.

        Use the decoder only for counting, with the `timestamp` column if `times` has bounds. Raise
        the errors of `decode`.
        """
        block, total = np.frombuffer(data, np.uint8), 0
        for wanted, attributes in self._wanted(block, place, aborted, times):
            counts, is_known = _counts(wanted, place, times)
            total += int(counts[is_known].sum())
            for batch in self._add(block, wanted[~is_known], attributes, place):
                total += count_within(batch, times)
        return total + sum(count_within(batch, times) for batch in self.flush())

    def flush(self) -> Iterator[RecordBatch]:
        """Yield the last rows, if any."""
        yield from self._rows.flush()

    def _wanted(
        self, block: t.Bytes, place: Place, aborted: Aborted, times: TimeBounds
    ) -> Iterator[tuple[t.Table, int]]:
        """Yield the checked headers of wanted batches, with the union of their attributes."""
        at, expected = 0, place.start_offset
        while at < block.size:
            count, at, expected, code = self._rows.walk(
                block, at, expected, place.end_offset, self._table
            )
            if count:
                yield self._choose(self._table[:count], block.data, place, aborted, times)
            if code != t.DONE:
                what = f"{t.WHAT[code]} (byte {at} of the block)"
                self._skip_offsets(place, expected, place.end_offset, what)
                return

    def _choose(
        self, table: t.Table, view: memoryview, place: Place, aborted: Aborted, times: TimeBounds
    ) -> tuple[t.Table, int]:
        """Return the batches with wanted records, and the union of their attributes. CRCs are
        checked first, because the attributes determine which batches are skipped.
        """
        if table[0, t.BASE_OFFSET] < place.low or table[-1, t.LAST_OFFSET] >= place.high:
            table = table[
                (table[:, t.LAST_OFFSET] >= place.low) & (table[:, t.BASE_OFFSET] < place.high)
            ]
        met, damaged = 0, list[int]()
        for row, (at, end, crc, attributes) in enumerate(table[:, t.CHECKED].tolist()):
            met |= attributes
            if crc32c(view[at + CRC_START : end]) != crc:
                start, last_offset = table[row, t.BASE_OFFSET : t.LAST_OFFSET + 1].tolist()
                what = f"{BAD_CHECKSUM} (byte {at} of the block)"
                self._skip_offsets(place, start, last_offset + 1, what)
                damaged.append(row)
        if damaged:
            table = np.delete(table, damaged, axis=0)
        return _visible(table, met, aborted, times), met

    def _add(
        self, block: t.Bytes, table: t.Table, attributes: int, place: Place
    ) -> Iterator[RecordBatch]:
        for group in self._groups(block, table, attributes, place):
            first = 0
            while first < len(group.table):
                rest = group._replace(table=group.table[first:])
                try:
                    yield from self._rows.add(rest)
                except t.BatchRefused as error:
                    yield from self._add_sound(rest, error, place)
                    first += error.row + 1
                else:
                    break

    def _add_sound(
        self, group: t.Group, refused: t.BatchRefused, place: Place
    ) -> Iterator[RecordBatch]:
        """Add the readable records of an invalid batch."""
        row = group.table[refused.row : refused.row + 1].copy()
        base_offset = int(row[0, t.BASE_OFFSET])
        source = group.source[int(row[0, t.DATA_START]) : int(row[0, t.DATA_END])].tobytes()
        found = sound_records(
            source,
            int(row[0, t.RECORD_COUNT]),
            int(row[0, t.LAST_OFFSET]) - base_offset,
            refused.taken,
        )
        for start, end, what in found.lost:
            self._skip_offsets(place, base_offset + start, base_offset + end, what)
        if found.record_count:
            row[0, t.DATA_START], row[0, t.DATA_END] = 0, len(found.data)
            row[0, t.RECORD_COUNT] = found.record_count
            yield from self._rows.add(
                group._replace(source=np.frombuffer(found.data, np.uint8), table=row)
            )

    def _skip_offsets(self, place: Place, start: int, end: int, what: str) -> None:
        """Report unreadable offsets if they are wanted."""
        if start < place.high and end > place.low:
            where = place.key, place.topic, place.partition
            self._on_unreadable(ReadError(*where, start, what, end_offset=end))

    def _groups(
        self, block: t.Bytes, table: t.Table, attributes: int, place: Place
    ) -> Iterator[t.Group]:
        """Yield the batches whose records are in one buffer: the block or decompressed data.
        `attributes` is the bitwise OR of the attributes of all batches.
        """
        offsets = place.topic, place.partition, place.low, place.high
        if not attributes & COMPRESSION_MASK:
            if len(table):
                yield t.Group(block, table, *offsets)
            return
        codecs = (table[:, t.ATTRIBUTES] & COMPRESSION_MASK).tolist()
        first = 0
        while first < len(codecs):
            if codecs[first]:
                last, following, source = self._inflate(block, table, codecs, first, place)
            else:
                last = next((row for row in range(first, len(codecs)) if codecs[row]), len(codecs))
                following, source = last, block
            if first < last:
                yield t.Group(source, table[first:last], *offsets)
            first = following

    def _inflate(
        self, block: t.Bytes, table: t.Table, codecs: Sequence[int], first: int, place: Place
    ) -> tuple[int, int, t.Bytes]:
        """Decompress batches from row `first` on until a group is full or a batch cannot be
        decompressed. Return the row after the group, the row to continue with, and the buffer.
        """
        used, row = 0, first
        if self._views:
            self._inflater.renew(_GROUP_BYTES)
        while row < len(codecs) and codecs[row] and used < _GROUP_BYTES:
            start, end = int(table[row, t.DATA_START]), int(table[row, t.DATA_END])
            try:
                inflated = self._inflater.append(codecs[row], block.data[start:end], used)
            except BatchCorrupt as error:
                start, end = int(table[row, t.BASE_OFFSET]), int(table[row, t.LAST_OFFSET]) + 1
                self._skip_offsets(place, start, end, str(error))
                return row, row + 1, np.frombuffer(self._inflater.output, np.uint8)
            table[row, t.DATA_START], table[row, t.DATA_END] = used, inflated
            used, row = inflated, row + 1
        return row, row, np.frombuffer(self._inflater.output, np.uint8)


def _visible(table: t.Table, met: int, aborted: Aborted, times: TimeBounds) -> t.Table:
    """Return the batches that are neither markers nor aborted and may contain records within
    `times`.
    """
    if met & (CONTROL_MASK | TRANSACTIONAL_MASK):
        attributes = table[:, t.ATTRIBUTES]
        keep = attributes & CONTROL_MASK == 0
        if aborted:
            for row in np.flatnonzero(keep & (attributes & TRANSACTIONAL_MASK != 0)).tolist():
                keep[row] = not aborted.has(
                    int(table[row, t.PRODUCER_ID]), int(table[row, t.BASE_OFFSET])
                )
        table = table[keep]
    if times.is_bounded and len(table):
        table = table[(_newest_ms(table) >= times.from_ms) & (_oldest_ms(table) <= times.to_ms)]
    return table


def _counts(table: t.Table, place: Place, times: TimeBounds) -> tuple[t.Numbers, t.Mask]:
    """Return the number of wanted records of each batch, and the batches whose header determines
    this number: all records have wanted timestamps, and the range does not cut the batch, or all or
    none of its offsets have records.
    """
    ends, records = table[:, t.LAST_OFFSET] + 1, table[:, t.RECORD_COUNT]
    low, high = np.maximum(table[:, t.BASE_OFFSET], place.low), np.minimum(ends, place.high)
    is_whole = (low == table[:, t.BASE_OFFSET]) & (high == ends)
    is_dense = records == ends - table[:, t.BASE_OFFSET]
    is_in_time = (_oldest_ms(table) >= times.from_ms) & (_newest_ms(table) <= times.to_ms)
    return np.where(is_whole, records, high - low), (is_whole | is_dense) & is_in_time & (
        records >= 0
    )


def _oldest_ms(table: t.Table) -> t.Numbers:
    """Return `BatchHeader.min_timestamp_ms` of each batch."""
    attributes, count = table[:, t.ATTRIBUTES], table[:, t.RECORD_COUNT]
    is_one = (count == 1) & (
        (table[:, t.MAX_TIMESTAMP] == table[:, t.BASE_TIMESTAMP])
        | (attributes & DELETE_HORIZON_MASK != 0)
    )
    is_known = (attributes & TIMESTAMP_TYPE_MASK != 0) | (count == 0) | is_one
    return np.where(is_known, table[:, t.MAX_TIMESTAMP], OLDEST_UNKNOWN)


def _newest_ms(table: t.Table) -> t.Numbers:
    """Return `BatchHeader.newest_timestamp_ms` of each batch."""
    newest: t.Numbers = table[:, t.MAX_TIMESTAMP]
    attributes = table[:, t.ATTRIBUTES]
    is_wrong = (attributes & TIMESTAMP_TYPE_MASK == 0) & (
        (newest < 0)
        | ((newest < table[:, t.BASE_TIMESTAMP]) & (attributes & DELETE_HORIZON_MASK == 0))
    )
    return np.where(is_wrong, NEWEST_UNKNOWN, newest)
