"""Check the objects in the bucket, the responses of brokers and the metadata in every run.

At every step: acknowledged data is durable, an offset has one record, the high watermark never
decreases, a stream epoch has one writer, and nothing is deleted that metadata references. At the
end: all acknowledged data is readable, and no unreferenced data object is left.
"""

import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from penstock.base.ids import StreamId
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase
from penstock.protocol.batch.records import Record
from penstock.stream.format.decoder import NeedMore, ObjectIndex, parse_tail
from penstock.stream.format.keys import parse_data_key, parse_wal_key
from penstock.stream.ports import BrokerIncarnation, ObjectRole
from tests.sim.store import Stored
from tests.support.history import History, Part, missing_objects, orphaned_objects


class Violation(Exception):
    """Something happened that must never happen."""


@dataclass(slots=True)
class _Wal:
    slots: set[int] = field(default_factory=set)
    durable_end: int = 0
    fence: int | None = None
    acked_max: int = -1


@dataclass(frozen=True, slots=True)
class _Stretch:
    start: int
    end: int
    writer: BrokerIncarnation
    slot: int


class Checker:
    def __init__(
        self, bucket: Stored, image: Callable[[], MetadataImage], fail: Callable[[str], None]
    ) -> None:
        self._bucket = bucket
        self._image = image
        self._fail = fail
        self._wals: dict[BrokerIncarnation, _Wal] = {}
        self._stretches: dict[StreamId, list[_Stretch]] = {}
        self._history = History(fail)
        self._acked_end: dict[Part, dict[int, int]] = {}
        """By leader epoch: a paused process may open late, and does not have what its successors
        acknowledged.
        """
        self._watermarks: dict[tuple[Part, int], int] = {}
        self._owners: dict[tuple[Part, int], BrokerIncarnation] = {}
        self.acked = self._history.acked
        self.check_all_read = self._history.check_all_read
        self.check_order = self._history.check_order
        self.offset_of = self._history.offset_of
        self.forgotten_ids: list[range] = []
        """Object ids that a recovery skipped: an old broker may put anything under them
        afterwards.
        """
        self.stream_of: Callable[[Part], StreamId] = self._stream_of
        """Find the data stream of a partition; replaced where several topics have the same name,
        one after the other.
        """
        self.is_inherited: Callable[[Part, int], bool] = lambda part, end: False
        """Say whether nothing below this offset is judged here: a fork has it from its source,
        whose brokers made it durable, or its topic is being deleted.
        """
        self.is_needed_fence: Callable[[str], bool] = lambda key: True
        """Say whether this fence is too young to be deleted."""
        self.has_wal_store = False
        self.lost_keys: Container[str] = frozenset()
        """Keys that the store has lost and will get back."""
        bucket.listen(self)

    @property
    def acked_count(self) -> int:
        return self._history.acked_count

    @property
    def read_count(self) -> int:
        return self._history.read_count

    # --- the bucket -------------------------------------------------------------------------------

    def written(self, key: str, data: bytes) -> None:
        slot = parse_wal_key(key)
        if slot is None:
            return
        index = parse_tail(data, len(data), key)
        assert not isinstance(index, NeedMore)
        wal = self._wals.setdefault(slot.writer, _Wal())
        record = self._image().nodes.wal(slot.writer)
        if slot.sequence in wal.slots:
            # A late copy of a PUT may recreate a slot that was deleted after its commit; the
            # janitor finds it once the WAL has ended.
            if record is not None and not record.ended and slot.sequence >= record.committed:
                self._fail(f"{key} was written twice")
            return
        wal.slots.add(slot.sequence)
        if index.is_fence:
            wal.fence = slot.sequence if wal.fence is None else min(wal.fence, slot.sequence)
        else:
            self._add_stretches(slot.writer, slot.sequence, index)
        if record is not None:
            # All offsets below this are committed. A WAL that has moved has none or only some of
            # its slots there.
            wal.durable_end = max(wal.durable_end, record.committed)
        while wal.durable_end in wal.slots and wal.durable_end != wal.fence:
            wal.durable_end += 1

    def _add_stretches(self, writer: BrokerIncarnation, sequence: int, index: ObjectIndex) -> None:
        for item in index.ranges:
            self._stretches.setdefault(item.stream_id, []).append(
                _Stretch(item.start_offset, item.end_offset, writer, sequence)
            )

    def deleting(self, key: str) -> None:
        image = self._image()
        object_id = parse_data_key(key)
        state = (
            image.objects.get(object_id) if object_id is not None else image.objects.in_place(key)
        )
        if state is not None and state.phase != ObjectPhase.DESTROYED:
            self._fail(
                f"{key} is deleted, the metadata has it as {state.phase.name} with {state.refs}"
                " references"
            )
        slot = parse_wal_key(key)
        if slot is None:
            return
        record = image.nodes.wal(slot.writer)
        if record is not None and not record.ended and slot.sequence >= record.committed:
            self._fail(f"{key} is deleted, recovery would begin at slot {record.committed}")
        if self._wals[slot.writer].fence == slot.sequence and self.is_needed_fence(key):
            self._fail(f"{key} is deleted, it is a fence that a paused broker may have to find")

    def is_own_slot(self, writer: BrokerIncarnation, key: str) -> bool:
        data = self._bucket.peek(key)
        if data is None:
            return False
        index = parse_tail(data, len(data), key)
        return (
            not isinstance(index, NeedMore)
            and index.header.role is ObjectRole.WAL
            and index.header.writer == writer
        )

    # --- responses of brokers ---------------------------------------------------------------------

    def sent(self, part: Part, identities: Iterable[bytes]) -> None:
        self._history.sent(part, identities)

    def opened(
        self, part: Part, epoch: int, writer: BrokerIncarnation, high_watermark: int
    ) -> None:
        """Record that a leader starts serving."""
        if self._is_over(part):
            return
        self._own(part, epoch, writer)
        acked = max(
            (end for acked_in, end in self._acked_end.get(part, {}).items() if acked_in <= epoch),
            default=0,
        )
        if high_watermark < acked:
            self._fail(
                f"{part} opens at {high_watermark} with epoch {epoch} at {writer}, {acked} was"
                " acknowledged"
            )
        self.watermark(part, epoch, high_watermark)

    def acknowledged(
        self,
        part: Part,
        epoch: int | None,
        writer: BrokerIncarnation,
        base: int,
        identities: list[bytes],
    ) -> None:
        """Record that a broker acknowledges these records as durable at these offsets."""
        if epoch is not None and not self._is_over(part):
            self._own(part, epoch, writer)
        end = base + len(identities)
        if self.is_inherited(part, end):
            return
        stretch = self._durable(part, base, end)
        if stretch is None:
            if not self._is_committed(part, end):
                self._fail(
                    f"{writer} acknowledges {part} [{base}, {end}), epoch {epoch}, which is not"
                    " durable"
                )
        else:
            wal = self._wals[stretch.writer]
            wal.acked_max = max(wal.acked_max, stretch.slot)
        for at, identity in enumerate(identities):
            self._history.acknowledged(part, base + at, identity)
        if epoch is not None:
            ends = self._acked_end.setdefault(part, {})
            ends[epoch] = max(ends.get(epoch, 0), end)

    def delivered(self, part: Part, base: int, identities: list[bytes]) -> None:
        """Record that a client considers these records acknowledged. base -1: it did not receive
        their offset.
        """
        for at, identity in enumerate(identities):
            self._history.acknowledged(part, base + at if base >= 0 else -1, identity)

    def fetched(
        self, part: Part, high_watermark: int, offset: int, batches: list[list[Record]]
    ) -> None:
        """Record that a broker allows a client to read from `offset`."""
        expected: int | None = None
        for records in batches:
            first, end = records[0].offset, records[-1].offset + 1
            if expected is None and not first <= offset < end:
                self._fail(f"{part}: a fetch at {offset} gives [{first}, {end})")
            if expected is not None and first != expected:
                self._fail(f"{part}: offset {first} follows {expected - 1}")
            expected = end
            if end > high_watermark:
                self._fail(
                    f"{part}: [{first}, {end}) is readable, the high watermark is {high_watermark}"
                )
            if self._lacks(part, first, end):
                self._fail(f"{part}: [{first}, {end}) is readable and not durable")
            for at, record in enumerate(records):
                if record.offset != first + at:
                    self._fail(
                        f"{part}: record {at} of the batch at {first} has offset {record.offset}"
                    )
                self._history.read(part, record.offset, identity_of(record))

    def read(self, part: Part, offset: int, identity: bytes) -> None:
        """Record that a client has read this record at this offset."""
        if self._lacks(part, offset, offset + 1):
            self._fail(f"{part}: offset {offset} is readable and not durable")
        self._history.read(part, offset, identity)

    def acked_end(self, part: Part) -> int:
        """Return the end offset of everything acknowledged so far."""
        return max(self._acked_end.get(part, {}).values(), default=0)

    def is_owner(self, part: Part, epoch: int, writer: BrokerIncarnation) -> bool:
        """Return whether the writer leads in that epoch."""
        return self._owners.get((part, epoch)) == writer

    def _own(self, part: Part, epoch: int, writer: BrokerIncarnation) -> None:
        owner = self._owners.setdefault((part, epoch), writer)
        if owner != writer:
            self._fail(f"{part} epoch {epoch} is served by {owner} and by {writer}")

    def _is_over(self, part: Part) -> bool:
        """Return whether the topic was deleted. A late request may create it again."""
        return self.is_inherited(part, sys.maxsize)

    def watermark(self, part: Part, epoch: int, high_watermark: int) -> None:
        if self._is_over(part):
            return
        if high_watermark < self._watermarks.get((part, epoch), 0):
            self._fail(
                f"{part}: the high watermark goes back from {self._watermarks[part, epoch]} to"
                f" {high_watermark} in epoch {epoch}"
            )
        elif high_watermark > self._watermarks.get((part, epoch), 0) and self._lacks(
            part, high_watermark - 1, high_watermark
        ):
            self._fail(
                f"{part}: the high watermark moves to {high_watermark}, below which not everything"
                " is durable"
            )
        self._watermarks[part, epoch] = high_watermark

    def _lacks(self, part: Part, start: int, end: int) -> bool:
        return (
            not self.is_inherited(part, end)
            and self._durable(part, start, end) is None
            and not self._is_committed(part, end)
        )

    def _is_committed(self, part: Part, end: int) -> bool:
        """Return whether objects in the metadata contain all offsets below this one, without slots:
        they replace slots in a WAL store that is down.
        """
        if not self.has_wal_store:
            return False
        stream = self._image().streams.get(self.stream_of(part))
        return stream is not None and stream.end_offset >= end

    def _durable(self, part: Part, start: int, end: int) -> _Stretch | None:
        image = self._image()
        for stretch in reversed(self._stretches.get(self.stream_of(part), [])):
            if not (stretch.start <= start and end <= stretch.end):
                continue
            record = image.nodes.wal(stretch.writer)
            is_past_end = (
                record is not None and record.end is not None and stretch.slot >= record.end
            )
            if stretch.slot < self._wals[stretch.writer].durable_end and not is_past_end:
                return stretch
        return None

    def _stream_of(self, part: Part) -> StreamId:
        topic = self._image().topics.by_name(part[0])
        assert topic is not None
        return topic.partitions[part[1]].data_stream_id

    # --- periodically and at the end --------------------------------------------------------------

    def check_metadata(self) -> None:
        image = self._image()
        image.check_invariants()
        for record in image.nodes.wals():
            wal = self._wals.get(record.writer)
            if wal is not None and record.end is not None and wal.acked_max >= record.end:
                self._fail(
                    f"the WAL of {record.writer} ended at slot {record.end}, slot {wal.acked_max}"
                    " was acknowledged"
                )
        for missing in missing_objects(
            image, lambda key: self._bucket.peek(key) is not None or key in self.lost_keys
        ):
            self._fail(missing)

    def orphans(self, *, prepared: bool) -> list[str]:
        """Return unreferenced data objects. prepared: include those that were prepared and never
        committed, which have a long grace period.
        """
        image = self._image()
        never_committed = {state.key for state in image.objects if not state.was_committed}
        found = orphaned_objects(
            image, [key for key in self._bucket.keys if prepared or key not in never_committed]
        )
        return [item for item in found if not self._is_forgotten(item.split()[0])]

    def _is_forgotten(self, key: str) -> bool:
        object_id = parse_data_key(key)
        return (
            object_id is not None
            and self._image().objects.get(object_id) is None
            and any(object_id in ids for ids in self.forgotten_ids)
        )


def identity_of(record: Record) -> bytes:
    assert record.value is not None
    return record.value.partition(b" ")[0]


class StableOffsets:
    """Checks that the last stable offset of a partition never decreases, under any leader, because
    readers treat earlier records as decided.
    """

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._known: dict[Part, tuple[int, int]] = {}
        """The newest leader epoch seen, and the highest offset of it or of an earlier one."""

    def told(self, part: Part, epoch: int, offset: int) -> None:
        """Record a response of the leader of this epoch. Late responses of earlier leaders are
        ignored.
        """
        known_epoch, known = self._known.get(part, (epoch, 0))
        if epoch > known_epoch and offset < known:
            self._fail(
                f"{part}: the last stable offset went from {known} to {offset} with leader epoch"
                f" {epoch}"
            )
        if epoch >= known_epoch:
            self._known[part] = (epoch, max(known, offset))
