"""An in-memory fake of the controller's stream metadata, with the checks of `controller.managers`.

Each start of a broker accesses one `MemoryController` through its own `MemoryStreamMetadata`.
Mutations take effect immediately. Tests can fail calls before they take effect (`refuse`) or lose
their responses (`lose_reply`).
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.stream.errors import (
    NotContiguous,
    StreamFenced,
    StreamNotClosed,
    StreamNotOpened,
    WalFenced,
)
from penstock.stream.format.keys import WAL_STORE_ROOT, data_key, parse_wal_key
from penstock.stream.ports import (
    IN_STORE,
    BrokerIncarnation,
    CommitObjects,
    NewObject,
    ObjectRange,
    OpenedStream,
    OpenStream,
    PreparedObject,
    StreamRange,
    WalMove,
    WalStoreIdentity,
)

NO_EPOCH, ZERO, FIRST_SLOT = StreamEpoch(-1), Offset(0), WalSequence(0)
NOBODY = BrokerIncarnation(NodeId(-1), NodeEpoch(-1))


@dataclass
class MemoryStream:
    epoch: StreamEpoch = NO_EPOCH
    owner: BrokerIncarnation = NOBODY
    opened: bool = False
    start_offset: Offset = ZERO
    end_offset: Offset = ZERO
    ranges: list[ObjectRange] = field(default_factory=list)


@dataclass
class MemoryWal:
    committed: WalSequence = FIRST_SLOT
    end: WalSequence | None = None


class MemoryController:
    def __init__(self) -> None:
        self.streams: dict[StreamId, MemoryStream] = {}
        self.wals: dict[BrokerIncarnation, MemoryWal] = {}
        self.fenced: set[BrokerIncarnation] = set()
        self.objects: dict[ObjectId, NewObject] = {}
        self.in_place: dict[str, ObjectId] = {}
        self.commits: list[CommitObjects] = []
        """All commits that took effect, in order."""
        self.data_streams: dict[StreamId, StreamId] = {}
        """The data stream to which each other stream belongs."""
        self.accepted: dict[BrokerIncarnation, set[WalSequence]] = {}
        self.wal_stores: dict[BrokerIncarnation, WalStoreIdentity] = {}
        """The store of each WAL that is not in the cluster's data store."""
        self._next_object_id = 1

    def create_stream(self, stream_id: int) -> StreamId:
        self.streams[StreamId(stream_id)] = MemoryStream()
        return StreamId(stream_id)

    def fence(self, writer: BrokerIncarnation) -> None:
        self.fenced.add(writer)

    def of(self, node_id: int, node_epoch: int) -> "MemoryStreamMetadata":
        """Return the view for one start of a broker."""
        writer = BrokerIncarnation(NodeId(node_id), NodeEpoch(node_epoch))
        self.wals.setdefault(writer, MemoryWal())
        return MemoryStreamMetadata(self, writer)

    def check_node(self, writer: BrokerIncarnation) -> None:
        if writer in self.fenced:
            raise WalFenced(self.wals[writer].committed, "the controller: the node is fenced")

    def new_object_id(self) -> ObjectId:
        self._next_object_id += 1
        return ObjectId(self._next_object_id - 1)

    def check_invariants(self) -> None:
        for stream_id, stream in self.streams.items():
            for before, after in zip(stream.ranges, stream.ranges[1:], strict=False):
                assert before.range.end_offset == after.range.start_offset, (
                    f"a gap in stream {stream_id}"
                )
            assert not stream.ranges or stream.ranges[-1].range.end_offset == stream.end_offset

    def commit(self, writer: BrokerIncarnation, commit: CommitObjects) -> None:
        self.check_node(writer)
        prepared = [item for item in commit.objects if item.object_id is not None]
        repeated = any(item.object_id in self.objects for item in prepared)
        ends: dict[StreamId, Offset] = {}
        added: list[tuple[NewObject, StreamRange]] = []
        for item in commit.objects:
            self._check_slot(writer, item)
            for part in item.ranges:
                stream = self.streams.get(part.stream_id)
                if stream is None or part.end_offset <= ends.get(part.stream_id, stream.end_offset):
                    continue
                self._check_owner(part.stream_id, stream, writer)
                self._check_follows(part, ends.get(part.stream_id, stream.end_offset), stream)
                ends[part.stream_id] = part.end_offset
                added.append((item, part))
        assert not (repeated and added), "an object was committed before with other ranges"
        for close in commit.closes:
            self._check_close(close.stream_id, close.epoch, close.end_offset, ends, writer)
        self._apply(added)
        for item in prepared:
            assert item.object_id is not None
            self.objects[item.object_id] = item
        for close in commit.closes:
            stream = self.streams.get(close.stream_id)
            if stream is not None and stream.epoch == close.epoch:
                stream.opened = False
        if commit.wal_committed is not None:
            wal = self.wals[writer]
            if commit.wal_move is not None and commit.wal_committed > wal.committed:
                self._move_wal(writer, commit.wal_move)
            wal.committed = max(wal.committed, commit.wal_committed)
        self.commits.append(commit)

    def _move_wal(self, writer: BrokerIncarnation, move: WalMove) -> None:
        if move.wal_store is None:
            self.wal_stores.pop(writer, None)
        else:
            self.wal_stores[writer] = move.wal_store

    def commit_recovered(
        self,
        recoverer: BrokerIncarnation,
        failed: BrokerIncarnation,
        objects: Sequence[NewObject],
        done: bool,
        end: WalSequence,
        held: Collection[StreamId] = (),
    ) -> None:
        self.check_node(recoverer)
        assert failed in self.fenced, "recovery of a writer that is alive"
        wal = self.wals[failed]
        if wal.end is not None:
            if done and wal.end == end:
                return
            raise WalFenced(end, "the controller: the WAL has ended")
        ends: dict[StreamId, Offset] = {}
        added: list[tuple[NewObject, StreamRange]] = []
        for item in objects:
            self._check_slot(failed, item)
            for part in item.ranges:
                stream = self.streams.get(part.stream_id)
                if stream is None or not stream.opened or stream.owner != failed:
                    continue
                if part.end_offset <= ends.get(part.stream_id, stream.end_offset):
                    continue
                self._check_follows(part, ends.get(part.stream_id, stream.end_offset), stream)
                ends[part.stream_id] = part.end_offset
                added.append((item, part))
        self._apply(added)
        if not done:
            return
        assert end >= wal.committed, "a WAL ends below its committed slot"
        for stream_id, stream in self.streams.items():
            if (
                stream.opened
                and stream.owner == failed
                and self.data_streams.get(stream_id, stream_id) not in held
            ):
                stream.opened = False
        wal.end = None if held else end

    def _check_slot(self, writer: BrokerIncarnation, item: NewObject) -> None:
        if item.object_id is not None:
            return
        slot = parse_wal_key(item.key)
        assert slot is not None, item.key
        assert slot.writer == writer, f"{item.key} is not a slot of {writer}"
        wal_store = self.wal_stores.get(writer)
        assert slot.wal_store == (IN_STORE if wal_store is None else wal_store.store_id)
        assert slot.sequence >= self.wals[writer].committed, (
            f"{item.key} lies below the committed slot: it may be deleted"
        )

    @staticmethod
    def _check_owner(stream_id: StreamId, stream: MemoryStream, writer: BrokerIncarnation) -> None:
        if not stream.opened:
            raise StreamNotOpened(stream_id)
        if stream.owner != writer:
            raise StreamFenced(stream_id, f"it belongs to {stream.owner}")

    @staticmethod
    def _check_follows(part: StreamRange, end: Offset, stream: MemoryStream) -> None:
        if part.start_offset != end and not end < part.start_offset <= stream.start_offset:
            raise NotContiguous(part.stream_id, end, part.start_offset)

    def _check_close(
        self,
        stream_id: StreamId,
        epoch: StreamEpoch,
        end_offset: Offset,
        ends: dict[StreamId, Offset],
        writer: BrokerIncarnation,
    ) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        end = ends.get(stream_id, stream.end_offset)
        if stream.epoch > epoch and end_offset <= end:
            return
        if stream.epoch != epoch or stream.owner != writer:
            raise StreamFenced(stream_id, f"it is at epoch {stream.epoch} of {stream.owner}")
        if end_offset != max(end, stream.start_offset):
            raise NotContiguous(stream_id, end, end_offset)

    def _apply(self, added: list[tuple[NewObject, StreamRange]]) -> None:
        for item, part in added:
            object_id = item.object_id
            if object_id is None:
                object_id = self.in_place.get(item.key) or self.new_object_id()
                self.in_place[item.key] = object_id
            stream = self.streams[part.stream_id]
            stream.ranges.append(ObjectRange(object_id, item.key, item.role, item.size_bytes, part))
            stream.end_offset = part.end_offset


@dataclass
class Disturbance:
    """A call to fail. `method`: its name in StreamMetadata."""

    method: str
    error: Exception
    takes_effect: bool


class MemoryStreamMetadata:
    """`stream.ports.StreamMetadata` for one start of a broker."""

    def __init__(self, controller: MemoryController, writer: BrokerIncarnation) -> None:
        self.controller = controller
        self.writer = writer
        self.disturbances: deque[Disturbance] = deque()
        self.commit_gate = asyncio.Event()
        self.commit_gate.set()
        """While it is cleared, commits wait before they take effect."""

    def refuse(self, method: str, count: int = 1, error: Exception | None = None) -> None:
        """Fail the next calls of this method with the error (default: TimeoutError) before they
        take effect.
        """
        reported = error or TimeoutError("the controller did not respond")
        self.disturbances.extend(Disturbance(method, reported, False) for _ in range(count))

    def lose_reply(self, method: str, count: int = 1) -> None:
        """Let the next calls of this method take effect and raise TimeoutError."""
        self.disturbances.extend(
            Disturbance(method, TimeoutError("the reply was lost"), True) for _ in range(count)
        )

    async def open_streams(self, requests: Sequence[OpenStream]) -> list[OpenedStream | Exception]:
        await self._begin("open_streams")
        self.controller.check_node(self.writer)
        results: list[OpenedStream | Exception] = [self._open(request) for request in requests]
        self._end("open_streams")
        return results

    def _open(self, request: OpenStream) -> OpenedStream | Exception:
        stream = self.controller.streams[request.stream_id]
        if stream.epoch > request.epoch or (
            stream.epoch == request.epoch and stream.owner != self.writer
        ):
            return StreamFenced(
                request.stream_id, f"it is at epoch {stream.epoch} of {stream.owner}"
            )
        if stream.opened and not (stream.epoch == request.epoch and stream.owner == self.writer):
            return StreamNotClosed(request.stream_id)
        stream.epoch, stream.owner, stream.opened = request.epoch, self.writer, True
        return OpenedStream(
            request.stream_id, request.epoch, stream.start_offset, stream.end_offset
        )

    async def prepare_objects(self, count: int) -> list[PreparedObject]:
        await self._begin("prepare_objects")
        self.controller.check_node(self.writer)
        ids = [self.controller.new_object_id() for _ in range(count)]
        self._end("prepare_objects")
        return [PreparedObject(object_id, data_key(object_id)) for object_id in ids]

    async def commit(self, commit: CommitObjects) -> None:
        await self._begin("commit")
        await self.commit_gate.wait()
        self.controller.commit(self.writer, commit)
        self.controller.check_invariants()
        self._end("commit")

    def position(self) -> int:
        return len(self.controller.commits)

    async def backed_up(self, position: int) -> None:
        """Do nothing, because this controller never loses state."""
        assert position <= len(self.controller.commits)

    async def trim_stream(
        self, stream_id: StreamId, epoch: StreamEpoch, start_offset: Offset, *, keep: bool = False
    ) -> None:
        await self._begin("trim_stream")
        self.controller.check_node(self.writer)
        stream = self.controller.streams[stream_id]
        if stream.owner != self.writer or stream.epoch != epoch or not stream.opened:
            raise StreamFenced(stream_id, f"it is at epoch {stream.epoch} of {stream.owner}")
        stream.start_offset = max(stream.start_offset, start_offset)
        self._end("trim_stream")

    def objects(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit: int
    ) -> list[ObjectRange]:
        ranges = self.controller.streams[stream_id].ranges
        return [
            item
            for item in ranges
            if item.range.end_offset > start_offset and item.range.start_offset < end_offset
        ][:limit]

    def committed_end(self, stream_id: StreamId) -> Offset:
        return self.controller.streams[stream_id].end_offset

    def first_in_wal_store(self, stream_id: StreamId) -> Offset | None:
        ranges = self.controller.streams[stream_id].ranges
        return next(
            (item.range.start_offset for item in ranges if item.key.startswith(WAL_STORE_ROOT)),
            None,
        )

    def is_closed(self, stream_id: StreamId) -> bool:
        return not self.controller.streams[stream_id].opened

    def wal_store_bytes(self) -> int:
        ranges = (item for stream in self.controller.streams.values() for item in stream.ranges)
        sizes = {item.key: item.object_size_bytes for item in ranges}
        return sum(size for key, size in sizes.items() if key.startswith(WAL_STORE_ROOT))

    def has_object(self, wal_key: str) -> bool:
        return wal_key in self.controller.in_place

    def streams_owned_by(self, owner: BrokerIncarnation) -> dict[StreamId, Offset]:
        streams = self.controller.streams
        return {
            key: max(item.end_offset, item.start_offset)
            for key, item in streams.items()
            if item.opened and item.owner == owner
        }

    def data_streams_of(self, stream_ids: Iterable[StreamId]) -> dict[StreamId, StreamId]:
        return {
            stream_id: self.controller.data_streams.get(stream_id, stream_id)
            for stream_id in stream_ids
        }

    def is_wal_store_ended(self, store_id: WalStoreId) -> bool:
        """Return False: no WAL store is ever abandoned."""
        return False

    def wal_store_of(self, writer: BrokerIncarnation) -> WalStoreIdentity | None:
        return self.controller.wal_stores.get(writer)

    def accepted_losses(self, writer: BrokerIncarnation) -> Collection[WalSequence]:
        return self.controller.accepted.get(writer, set())

    async def commit_recovered(
        self,
        failed: BrokerIncarnation,
        objects: Sequence[NewObject],
        *,
        done: bool,
        end: WalSequence,
        held: Sequence[StreamId] = (),
    ) -> None:
        await self._begin("commit_recovered")
        self.controller.commit_recovered(self.writer, failed, objects, done, end, held)
        self.controller.check_invariants()
        self._end("commit_recovered")

    async def _begin(self, method: str) -> None:
        await asyncio.sleep(0)
        if (
            self.disturbances
            and self.disturbances[0].method == method
            and not self.disturbances[0].takes_effect
        ):
            raise self.disturbances.popleft().error

    def _end(self, method: str) -> None:
        if self.disturbances and self.disturbances[0].method == method:
            raise self.disturbances.popleft().error
