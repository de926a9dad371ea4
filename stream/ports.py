"""Interfaces and values that the stream layer requires from its environment.

`controller.api.stream_metadata` implements `StreamMetadata` with gRPC and the local metadata image,
`tests/support` in memory. Mutations are RPCs to the controller; lookups read the local image
without I/O.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)

OWN_STREAM = StreamId(-1)
"""In an object reference, this means that the object contains the range under the id of the stream
itself.
"""


IN_STORE = WalStoreId(0)
"""The WAL is in the cluster's own store, like all other objects."""

NO_OBJECT = ObjectId(-1)
NOTHING_CLEANED = Offset(0)


class ObjectRole(IntEnum):
    """The role of an object. Object headers and metadata store these numbers, so never reuse
    one.
    """

    WAL = 1
    STREAM_SET = 2
    STREAM = 3
    FENCE = 4


@dataclass(frozen=True, slots=True)
class StreamRange:
    """A contiguous run of one stream inside one object."""

    stream_id: StreamId
    start_offset: Offset
    end_offset: Offset
    record_count: int
    size_bytes: int
    max_timestamp_ms: Millis


@dataclass(frozen=True, slots=True)
class NewObject:
    """An uploaded object to be committed.

    object_id: the prepared id, or None for a WAL object that is committed in place.
    """

    object_id: ObjectId | None
    key: str
    role: ObjectRole
    size_bytes: int
    ranges: tuple[StreamRange, ...]

    def part_of(self, stream_ids: Collection[StreamId]) -> "NewObject | None":
        """Return the object without the ranges of other streams, or None if no ranges are left."""
        ranges = tuple(found for found in self.ranges if found.stream_id in stream_ids)
        return replace(self, ranges=ranges) if ranges else None


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """The committed location of a part of a stream. `range` is the part of the object that belongs
    to the log of the stream.

    stored_stream_id: the stream id under which the object contains the range, if different: a fork
    refers to objects of its source.
    """

    object_id: ObjectId
    key: str
    role: ObjectRole
    object_size_bytes: int
    range: StreamRange
    stored_stream_id: StreamId = OWN_STREAM

    @property
    def stream_id_in_object(self) -> StreamId:
        stored = self.stored_stream_id
        return self.range.stream_id if stored == OWN_STREAM else stored


class CommittedBorder(NamedTuple):
    """A boundary between two batches in the committed part of a stream.

    object_id: the object whose range contains it, or `NO_OBJECT` if it lies between two ranges. Log
    compaction moves boundaries only by replacing that range.
    """

    offset: Offset
    object_id: ObjectId


@dataclass(frozen=True, slots=True)
class PreparedObject:
    object_id: ObjectId
    key: str


@dataclass(frozen=True, slots=True)
class OpenStream:
    stream_id: StreamId
    epoch: StreamEpoch


@dataclass(frozen=True, slots=True)
class OpenedStream:
    stream_id: StreamId
    epoch: StreamEpoch
    start_offset: Offset
    end_offset: Offset
    """The committed end, which is the offset of the next append."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    stream_id: StreamId
    epoch: StreamEpoch
    end_offset: Offset
    """The confirmed (durable) end. It must equal the committed end after the commit that includes
    this close.
    """


@dataclass(frozen=True, slots=True)
class ReplacedRange:
    """A source of a compaction: the entry of `stream_id` in `object_id`, completely covered by the
    new objects of the same commit.
    """

    stream_id: StreamId
    object_id: ObjectId
    start_offset: Offset
    end_offset: Offset


class WalStoreIdentity(NamedTuple):
    """Identifies a WAL store by its contents: different stores may have the same URL."""

    cluster_id: str
    store_id: WalStoreId
    uuid: UUID


class WalMove(NamedTuple):
    """Slots from `wal_committed` on are in this store; None means the cluster's own store."""

    wal_store: WalStoreIdentity | None


@dataclass(frozen=True, slots=True)
class CommitObjects:
    """One atomic transaction, idempotent if a response is lost.

    wal_committed: recovery needs no slot below this one. It never decreases; None leaves it
    unchanged. wal_move: applied only if `wal_committed` increases, so that a late copy of the
    request has no effect. cleaned_end: log compaction removed records from the replaced ranges
    because newer records with their keys exist below this offset; 0 if nothing was removed.
    tombstones_kept_ms: how long log compaction keeps tombstones that it has not seen before; the
    commit is rejected if records that DeleteRecords removed can be restored for longer.
    """

    objects: tuple[NewObject, ...] = ()
    replaced: tuple[ReplacedRange, ...] = ()
    closes: tuple[CloseStream, ...] = ()
    wal_committed: WalSequence | None = None
    cleaned_end: Offset = NOTHING_CLEANED
    tombstones_kept_ms: int | None = None
    wal_move: WalMove | None = None


class BrokerIncarnation(NamedTuple):
    """One run of one broker, as the writer of its WAL.

    This is a tuple, because it is a key in many tables and must be hashed and compared in C.
    """

    node_id: NodeId
    node_epoch: NodeEpoch


class StreamMetadata(Protocol):
    """The controller, as seen by the stream layer of one (node, node epoch).

    Every mutation returns only once the local image contains it (read your writes). Mutations raise
    StreamFenced, StreamNotClosed, WalFenced (the node epoch expired or the node is fenced) and
    NotContiguous. Implementations retry transport errors until the deadline, then raise
    `TimeoutError`.
    """

    async def open_streams(self, requests: Sequence[OpenStream]) -> list[OpenedStream | Exception]:
        """Open streams. If one stream fails, the others are not affected.

        Opening a stream again with the same owner and epoch succeeds, in case the first response
        was lost.
        """
        ...

    async def prepare_objects(self, count: int) -> list[PreparedObject]:
        """Allocate ids and keys for PUTs. The controller deletes uncommitted objects after 60
        minutes.
        """
        ...

    async def commit(self, commit: CommitObjects) -> None: ...

    def position(self) -> int:
        """Return the position of the local image, for `backed_up`. After a commit, it includes that
        commit.
        """
        ...

    async def backed_up(self, position: int) -> None:
        """Wait until everything up to `position` would survive the loss of all controllers and is
        listed in the manifest. After another grace period, the bytes that it replaced may be
        deleted.

        This waits for the store without a timeout. Raises when this broker incarnation has ended.
        """
        ...

    async def trim_stream(
        self, stream_id: StreamId, epoch: StreamEpoch, start_offset: Offset, *, keep: bool = False
    ) -> None:
        """Advance the start of a stream. keep: whether the removed part, which must be committed,
        can be restored for a while.
        """
        ...

    def objects(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit: int
    ) -> list[ObjectRange]:
        """Return committed ranges that intersect [start, end) from the local image, in offset
        order, at most `limit`.
        """
        ...

    def committed_end(self, stream_id: StreamId) -> Offset: ...

    def first_in_wal_store(self, stream_id: StreamId) -> Offset | None:
        """Return the first committed offset whose bytes are in a WAL store, from the local image;
        None if all are in the cluster's own store.
        """
        ...

    def is_closed(self, stream_id: StreamId) -> bool:
        """Return whether the stream exists and has no owner, in the local image."""
        ...

    def wal_store_bytes(self) -> int:
        """Return the size of the committed slots in WAL stores that rewrites can replace."""
        ...

    def has_object(self, wal_key: str) -> bool:
        """Return whether the local image contains this WAL slot as an object, whether referenced or
        not.
        """
        ...

    def streams_owned_by(self, owner: BrokerIncarnation) -> dict[StreamId, Offset]:
        """Return the open streams of this writer, each with max(committed end, start), from which
        recovery of its WAL searches for records.
        """
        ...

    def data_streams_of(self, stream_ids: Iterable[StreamId]) -> dict[StreamId, StreamId]:
        """Map each stream to the data stream of its partition."""
        ...

    def wal_store_of(self, writer: BrokerIncarnation) -> WalStoreIdentity | None:
        """Return the store that contains this WAL, or None for the cluster's own store."""
        ...

    def is_wal_store_ended(self, store_id: WalStoreId) -> bool:
        """Return whether no WAL may move into this WAL store: because the store is lost or was
        drained.
        """
        ...

    def accepted_losses(self, writer: BrokerIncarnation) -> Collection[WalSequence]:
        """Return the slots of this WAL whose loss an operator has accepted."""
        ...

    async def commit_recovered(
        self,
        failed: BrokerIncarnation,
        objects: Sequence[NewObject],
        *,
        done: bool,
        end: WalSequence,
        held: Sequence[StreamId] = (),
    ) -> None:
        """Commit objects in the WAL of a dead writer in place.

        done: whether to close its streams, end its WAL at `end` and elect new leaders. held: data
        streams whose partitions must wait. Their streams stay open without a leader, and the WAL
        does not end.
        """
        ...
