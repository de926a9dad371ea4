"""Count the records of slices, from metadata where possible. Dense slices are not read. For other
slices, the object's index is read, and also the blocks whose count is not in the index. Batch
headers are sufficient unless the range or the time bounds cut a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.lake.arrow.background import background
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.arrow.decode import Decoder
from penstock.lake.arrow.read import AbortedByStream, PartDecoder
from penstock.lake.arrow.read_sync import CLOSE_S, open_fetch
from penstock.lake.arrow.renew import PAUSE_MS, ReplanBackoff, look_up_aborted, replan_slices
from penstock.lake.fetch.errors import ObjectGone
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.parts import Piece
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.fetch.unreadable import OnUnreadable, raise_unreadable


def count_records(
    cluster: StoreCluster,
    slices: Sequence[Slice],
    plain: frozenset[int],
    config: ReadConfig | None = None,
    *,
    committed: bool = False,
    times: TimeBounds = ALL_TIMES,
    bodies: Mapping[str, bytes] | None = None,
    pause_ms: int = PAUSE_MS,
    on_unreadable: OnUnreadable = raise_unreadable,
) -> dict[int, int]:
    """Return the number of wanted records by partition. `plain` contains the streams whose slices
    do not contain transactions. Raise the errors of `read_renewed`.

    Invariant: the count equals the number of rows returned by reading. Counts of the metadata
    include markers and aborted records, so they are used only for ranges without transactions. They
    also include unreadable records, so a scan that skips those reads all records instead, and
    records that repeat an offset, which only topics with record.validation=header accept.
    """
    aborted: AbortedByStream = {}
    if committed:
        mixed = [part for part in slices if part.stream_id not in plain]
        _, aborted = look_up_aborted(cluster.aborted, mixed)
    counter = _Counter(
        cluster, plain, config or ReadConfig(), times, bodies or {}, aborted, on_unreadable
    )
    totals = dict.fromkeys(sorted({part.partition for part in slices}), 0)
    left, backoff = list(slices), ReplanBackoff(pause_ms)
    while left:
        counts, done = [0] * len(left), len(left)
        try:
            counter.count(left, counts)
        except ObjectGone as gone:
            done -= len(gone.remaining) + 1
            backoff.take(gone, has_advanced=done > 0)
        for part, count in zip(left[:done], counts, strict=False):
            totals[part.partition] += count
        left = replan_slices(cluster.replan, left[done:])
    return totals


@dataclass(frozen=True, slots=True)
class _Counter:
    cluster: StoreCluster
    plain: frozenset[int]
    config: ReadConfig
    times: TimeBounds
    bodies: Mapping[str, bytes]
    aborted: AbortedByStream
    on_unreadable: OnUnreadable

    def count(self, slices: Sequence[Slice], counts: list[int]) -> None:
        """Set the count of each slice. Raise ObjectGone; the counts before that slice are then
        correct.
        """
        unknown: list[int] = []
        for number, part in enumerate(slices):
            if part.is_dense and part.stream_id in self.plain and not self.times.is_bounded:
                counts[number] = part.record_count
            else:
                unknown.append(number)
        if not unknown:
            return
        found = [0] * len(unknown)
        try:
            self._read([slices[number] for number in unknown], found)
        except ObjectGone as gone:
            number = unknown[len(unknown) - len(gone.remaining) - 1]
            raise ObjectGone(slices[number], tuple(slices[number + 1 :])) from None
        finally:
            for number, count in zip(unknown, found, strict=True):
                counts[number] = count

    def _read(self, slices: Sequence[Slice], counts: list[int]) -> None:
        def is_unknown(piece: Piece) -> bool:
            known = self._known(piece)
            counts[piece.ordinal] += known or 0
            return known is None

        column = "timestamp" if self.times.is_bounded else "offset"
        decoder = Decoder((column,), self.config, size_bytes=0, on_unreadable=self.on_unreadable)
        work = PartDecoder(decoder, self.aborted, self.times)
        shared = background()
        fetch = open_fetch(
            self.cluster.store_url,
            self.cluster.wal_store_url,
            slices,
            self.config,
            wanted=is_unknown,
            bodies=self.bodies,
        )
        try:
            while (fetched := shared.run(fetch.next())) is not None:
                for number, count in work.count(fetched):
                    counts[number] += count
        finally:
            shared.run(fetch.close(), CLOSE_S)

    def _known(self, piece: Piece) -> int | None:
        """Return the known record count of a block, or None if the block must be read."""
        part, block, times = piece.slice, piece.block, self.times
        if times.excludes_block(block):
            return 0
        if part.stream_id not in self.plain or not times.includes_block(block):
            return None
        low = max(part.start_offset, block.start_offset)
        high = min(part.end_offset, block.end_offset)
        offsets = block.end_offset - block.start_offset
        if high - low == offsets:
            return block.record_count
        return high - low if block.record_count == offsets else None
