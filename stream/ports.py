"""What the stream layer needs from the world, and the values that cross those borders.

`StreamMetadata` is implemented over gRPC and the local metadata image by
`controller.api.stream_metadata`, and in memory by `tests/support`. Mutations are RPCs to the
controller; look-ups are answered by the local image without any I/O.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)


class ObjectRole(IntEnum):
    """IDs are stored in object headers and metadata; never reuse."""

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
    """An object that was PUT and is to be committed. `object_id` is the prepared id; None for a WAL
    object committed in place.
    """

    object_id: ObjectId | None
    key: str
    role: ObjectRole
    size_bytes: int
    ranges: tuple[StreamRange, ...]


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Where a stretch of a stream lies, as committed: `range` is the part of the object that
    belongs to the stream's log.
    """

    object_id: ObjectId
    key: str
    role: ObjectRole
    object_size_bytes: int
    range: StreamRange


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
    """Committed end: the next append goes here."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    stream_id: StreamId
    epoch: StreamEpoch
    end_offset: Offset
    """Confirmed (durable) end. Must equal the committed end after the commit that carries this
    close.
    """


@dataclass(frozen=True, slots=True)
class ReplacedRange:
    """Compaction source: the entry of `stream_id` in `object_id` that the new objects of the same
    commit cover completely.
    """

    stream_id: StreamId
    object_id: ObjectId
    start_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class CommitObjects:
    """One atomic transaction. Either everything in it holds afterwards or nothing does; repeating
    it after a lost reply succeeds.

    wal_committed: every slot below it holds nothing any more that recovery would need; None leaves
    it. Never moves back.
    """

    objects: tuple[NewObject, ...] = ()
    replaced: tuple[ReplacedRange, ...] = ()
    closes: tuple[CloseStream, ...] = ()
    wal_committed: WalSequence | None = None


class BrokerIncarnation(NamedTuple):
    """One start of one broker, as the writer of its WAL. A key of many tables: hashed and compared
    without Python code.
    """

    node_id: NodeId
    node_epoch: NodeEpoch


class StreamMetadata(Protocol):
    """The controller as the stream layer of one (node, node epoch) sees it.

    Every mutation returns only when the local image has reached it (read your writes). Raises
    StreamFenced, StreamNotClosed, WalFenced (node epoch expired or node fenced), NotContiguous;
    transport errors are retried inside until the deadline, then `TimeoutError`.
    """

    async def open_streams(self, requests: Sequence[OpenStream]) -> list[OpenedStream | Exception]:
        """Open many; one bad stream does not fail the others. Same owner and epoch again is success
        (lost reply).
        """
        ...

    async def prepare_objects(self, count: int) -> list[PreparedObject]:
        """Allocate ids and keys for PUTs; uncommitted ones are deleted by the controller after 60
        minutes.
        """
        ...

    async def commit(self, commit: CommitObjects) -> None: ...

    def position(self) -> int:
        """How far the metadata have come here: after a commit, at least as far as it went. For
        `backed_up`.
        """
        ...

    async def backed_up(self, position: int) -> None:
        """Return when everything up to `position` is safe from a loss of all controllers, and
        readers of the store can know it: a grace later, bytes that it made useless may be deleted.

        Takes as long as the store does; raises when this broker start is over.
        """
        ...

    async def trim_stream(
        self, stream_id: StreamId, epoch: StreamEpoch, start_offset: Offset
    ) -> None: ...

    def objects(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit: int
    ) -> list[ObjectRange]:
        """Committed ranges that intersect [start, end), in offset order, at most `limit`, from the
        local image.
        """
        ...

    def committed_end(self, stream_id: StreamId) -> Offset: ...

    def streams_owned_by(self, owner: BrokerIncarnation) -> dict[StreamId, Offset]:
        """Open streams whose current owner this writer is, with max(committed end, start): what
        recovery of its WAL has to look for.
        """
        ...

    def data_streams_of(self, stream_ids: Iterable[StreamId]) -> dict[StreamId, StreamId]:
        """By stream the data stream of the same partition."""
        ...

    def accepted_losses(self, writer: BrokerIncarnation) -> Collection[WalSequence]:
        """Slots of this WAL whose loss an operator has accepted."""
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
        """Commit in place what a dead writer's WAL held; `done` closes its streams, ends its WAL at
        `end` and elects new leaders.

        held: data streams whose partitions must wait: they keep their streams open and get no
        leader, and the WAL does not end.
        """
        ...
