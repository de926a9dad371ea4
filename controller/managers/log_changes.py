"""Collect the log index changes of one transaction: the records and the new end of each stream."""

from collections.abc import Sequence

import msgspec

from penstock.base.ids import (
    Millis,
    ObjectId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.controller.api.messages import CommitObject, Status
from penstock.controller.managers.checks import check_count
from penstock.controller.managers.result import Refused
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase, ObjectState
from penstock.controller.metadata.records import ObjectCommitted, RangeEntry, Record
from penstock.controller.metadata.streams import StreamState
from penstock.stream.format.keys import parse_wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, ObjectRole

KEY_CHARS_MAX = 1_024
OBJECTS_MAX = 1_000
RANGES_MAX = 20_000


class LogChanges:
    """Collects `records` on top of `image`, which does not change. A range is accepted only if it
    starts at the end of its stream after the changes collected so far.
    """

    def __init__(self, image: MetadataImage, now_ms: Millis) -> None:
        self.image = image
        self.records: list[Record] = []
        self._now_ms = now_ms
        self._ends: dict[StreamId, Offset] = {}
        self._next_object_id = image.next_object_id

    def end_of(self, stream: StreamState) -> Offset:
        return self._ends.get(stream.stream_id, stream.end_offset)

    def holds(self, part: RangeEntry) -> bool:
        """Return whether nothing is left to commit: the stream was deleted, or the whole range is
        already committed.
        """
        stream = self.image.streams.get(part.stream_id)
        return stream is None or part.end_offset <= self.end_of(stream)

    def append(self, stream: StreamState, part: RangeEntry) -> None:
        """Append a range at the end of the stream. A gap before the range is accepted only if all
        of its offsets are trimmed. Raises Refused otherwise.
        """
        end = self.end_of(stream)
        if part.start_offset != end and not end < part.start_offset <= stream.start_offset:
            detail = (
                f"stream {stream.stream_id} ends at {end}, the range [{part.start_offset},"
                f" {part.end_offset}) does not follow it"
            )
            raise Refused(Status.OFFSET_NOT_MATCHED, detail)
        self._ends[stream.stream_id] = part.end_offset

    def commit_prepared(
        self, item: CommitObject, object_id: ObjectId, ranges: Sequence[RangeEntry]
    ) -> None:
        self.records.append(
            ObjectCommitted(
                object_id, item.key, item.role, item.size_bytes, self._now_ms, tuple(ranges)
            )
        )

    def commit_in_place(
        self, item: CommitObject, writer: BrokerIncarnation, ranges: Sequence[RangeEntry]
    ) -> None:
        """Register a WAL slot as an object, or add ranges to a registered slot. A slot without
        ranges is not registered.

        A slot that recovery no longer needs may be deleted at any time, so it must not be
        registered or extended.
        """
        sequence = slot_of(self.image, item, writer)
        if not ranges:
            return
        if self.image.nodes.wal_is_past(writer, sequence):
            raise Refused(
                Status.OBJECT_NOT_EXIST,
                f"slot {sequence} of WAL {writer} is below its committed slot: its object may"
                " have been deleted",
            )
        known = self.image.objects.in_place(item.key)
        if known is None:
            object_id = self._next_object_id
            self._next_object_id = ObjectId(object_id + 1)
        else:
            object_id = known.object_id
            self._check_new_to(object_id, ranges)
        self.records.append(
            ObjectCommitted(
                object_id,
                item.key,
                item.role,
                item.size_bytes,
                self._now_ms,
                tuple(ranges),
                writer.node_id,
                writer.node_epoch,
                sequence,
            )
        )

    def _check_new_to(self, object_id: ObjectId, ranges: Sequence[RangeEntry]) -> None:
        """Reject a second range of a stream in one slot, because a slot contains only one range per
        stream. This takes O(log entries) for slots that are already registered.
        """
        for part in ranges:
            stream = self.image.streams.get(part.stream_id)
            if stream is not None and any(
                entry.object_id == object_id for entry in (*stream.kept_entries, *stream.entries)
            ):
                detail = (
                    f"stream {part.stream_id} has another range of object {object_id} already than"
                    f" [.., {part.end_offset})"
                )
                raise Refused(Status.OFFSET_NOT_MATCHED, detail)


def clipped(part: RangeEntry, start: int) -> RangeEntry:
    """Return the range without its part below `start`. The counts are estimated in proportion,
    because only the object contains the exact counts. The record count is rounded down, so that it
    never equals the number of offsets by accident.
    """
    left, whole = part.end_offset - start, part.end_offset - part.start_offset
    return msgspec.structs.replace(
        part,
        start_offset=start,
        record_count=part.record_count * left // whole,
        size_bytes=max(1, round(part.size_bytes * left / whole)),
    )


def slot_of(image: MetadataImage, item: CommitObject, writer: BrokerIncarnation) -> WalSequence:
    slot, wal = parse_wal_key(item.key), image.nodes.wal(writer)
    if (
        item.role != ObjectRole.WAL
        or slot is None
        or slot.writer != writer
        or slot.wal_store != (IN_STORE if wal is None else wal.store_id)
    ):
        detail = (
            f"object {item.key!r} with role {item.role} is not a slot of the WAL of node"
            f" {writer.node_id} epoch {writer.node_epoch}"
        )
        raise Refused(Status.INVALID_REQUEST, detail)
    if image.nodes.is_wal_store_lost(slot.wal_store):
        raise Refused(
            Status.OBJECT_NOT_EXIST,
            f"slot {item.key!r} is in WAL store {slot.wal_store}, which was abandoned",
        )
    return slot.sequence


def prepared(image: MetadataImage, item: CommitObject, object_id: ObjectId) -> ObjectState:
    """Return the object to commit. `was_committed` means that the request is a retry after a lost
    reply.
    """
    if item.role not in {ObjectRole.STREAM_SET, ObjectRole.STREAM}:
        detail = (
            f"object {object_id} has role {item.role}; only stream and stream-set objects are"
            " prepared"
        )
        raise Refused(Status.INVALID_REQUEST, detail)
    state = image.objects.get(object_id)
    if (
        state is None
        or state.key != item.key
        or (state.phase == ObjectPhase.DESTROYED and not state.was_committed)
    ):
        raise Refused(
            Status.OBJECT_NOT_EXIST,
            f"object {object_id} is not prepared, or its deadline has passed: prepare it again",
        )
    return state


def check_objects(items: Sequence[CommitObject]) -> None:
    """Check the objects of a request without the image. Raises Refused."""
    check_count("objects", len(items), OBJECTS_MAX)
    check_count("ranges", sum(len(item.ranges) for item in items), RANGES_MAX)
    if len({item.key for item in items}) != len(items):
        raise Refused(Status.DUPLICATE_IN_REQUEST, "the request contains an object key twice")
    for item in items:
        _check_object(item)


def _check_object(item: CommitObject) -> None:
    if item.size_bytes <= 0 or not 0 < len(item.key) <= KEY_CHARS_MAX:
        raise Refused(
            Status.INVALID_REQUEST,
            f"object {item.key[:80]!r}: size {item.size_bytes} or key is not allowed",
        )
    if len({part.stream_id for part in item.ranges}) != len(item.ranges):
        raise Refused(
            Status.INVALID_REQUEST,
            f"object {item.key!r} has several ranges of one stream: merge them",
        )
    for part in item.ranges:
        if (
            not 0 <= part.start_offset < part.end_offset
            or part.size_bytes < 0
            or part.record_count < 0
        ):
            raise Refused(Status.INVALID_REQUEST, f"object {item.key!r}: {part} is not a range")
