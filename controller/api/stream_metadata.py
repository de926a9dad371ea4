"""Implements `stream.ports.StreamMetadata` with the controller client and the local image.

Mutations return after the local image includes them. Rejections are not retried, but converted to
errors of the stream layer. The affected stream is determined with an image that is at least as new
as the rejection.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence

import msgspec

from penstock.base.errors import StreamError
from penstock.base.ids import (
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.controller.api import messages as m
from penstock.controller.api.client import DEFAULT_TIMEOUT_S, ControllerClient
from penstock.controller.api.errors import (
    NodeRefused,
    ObjectRefused,
    RequestRefused,
    StreamRefused,
)
from penstock.controller.api.follower import FollowerStopped, MetadataFollower
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset, RangeEntry
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.wal_losses import accepted_losses, data_streams_of
from penstock.controller.metadata.wal_store_usage import rewritable_bytes
from penstock.stream.errors import (
    NotContiguous,
    ObjectNotPrepared,
    RangesReplaced,
    StreamFenced,
    StreamNotClosed,
    StreamNotOpened,
    WalFenced,
)
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

OPENS_PER_REQUEST = 2_000
PREPARES_PER_REQUEST = 1_000
RECOVERED_OBJECTS_PER_REQUEST = 1_000
RECOVERED_RANGES_PER_REQUEST = 10_000
"""Half of the controller's limit. This many ranges take about 600 kB in a request."""

_NO_SEQUENCE = WalSequence(-1)


class ControllerStreamMetadata:
    """Changes and reads metadata on behalf of one broker incarnation. The client must be bound to
    the follower (`client.bind`).
    """

    def __init__(
        self,
        client: ControllerClient,
        follower: MetadataFollower,
        node: BrokerIncarnation,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._follower = follower
        self._node = node
        self._timeout_s = timeout_s

    async def open_streams(self, requests: Sequence[OpenStream]) -> list[OpenedStream | Exception]:
        """See StreamMetadata.open_streams."""
        opened: list[OpenedStream | Exception] = []
        for at in range(0, len(requests), OPENS_PER_REQUEST):
            chunk = requests[at : at + OPENS_PER_REQUEST]
            items = [
                m.OpenStreamItem(stream_id=request.stream_id, epoch=request.epoch)
                for request in chunk
            ]
            message = m.OpenStreams(
                node_id=self._node.node_id, node_epoch=self._node.node_epoch, items=items
            )
            try:
                response = await self._client.open_streams(message, timeout_s=self._timeout_s)
            except (RequestRefused, FollowerStopped) as error:
                raise self._without_stream(error) from error
            opened += [
                _opened(request, item) for request, item in zip(chunk, response.items, strict=True)
            ]
        return opened

    async def prepare_objects(self, count: int) -> list[PreparedObject]:
        """See StreamMetadata.prepare_objects."""
        prepared: list[PreparedObject] = []
        while len(prepared) < count:
            wanted = min(count - len(prepared), PREPARES_PER_REQUEST)
            message = m.PrepareObjects(
                node_id=self._node.node_id, node_epoch=self._node.node_epoch, count=wanted
            )
            try:
                response = await self._client.prepare_objects(message, timeout_s=self._timeout_s)
            except (RequestRefused, FollowerStopped) as error:
                raise self._without_stream(error) from error
            prepared += [PreparedObject(item.object_id, item.key) for item in response.items]
        return prepared

    async def commit(self, commit: CommitObjects) -> None:
        """See StreamMetadata.commit."""
        message = m.Commit(
            node_id=self._node.node_id,
            node_epoch=self._node.node_epoch,
            objects=[_object(item) for item in commit.objects],
            replaced=[
                m.ReplacedItem(
                    stream_id=r.stream_id,
                    object_id=r.object_id,
                    start_offset=r.start_offset,
                    end_offset=r.end_offset,
                )
                for r in commit.replaced
            ],
            closes=[
                m.CloseItem(stream_id=c.stream_id, epoch=c.epoch, end_offset=c.end_offset)
                for c in commit.closes
            ],
            wal_committed=commit.wal_committed,
            cleaned_end=commit.cleaned_end,
            tombstones_kept_ms=commit.tombstones_kept_ms,
        )
        if commit.wal_move is not None:
            message = _with_move(message, commit.wal_move)
        try:
            await self._client.commit(message, timeout_s=self._timeout_s)
        except StreamRefused as error:
            raise await self._commit_refused(error, commit) from error
        except ObjectRefused as error:
            if error.status is m.Status.COMPACTED_OBJECTS_NOT_FOUND:
                await self._image_at(error)
                raise RangesReplaced(str(error)) from error
            is_prepared = any(item.object_id is not None for item in commit.objects)
            raise (ObjectNotPrepared(str(error)) if is_prepared else error) from error
        except (RequestRefused, FollowerStopped) as error:
            raise self._without_stream(error) from error

    def position(self) -> int:
        """See StreamMetadata.position."""
        return self._follower.offset

    async def backed_up(self, position: int) -> None:
        """See StreamMetadata.backed_up."""
        await self._follower.backed_up(MetadataOffset(position))

    async def trim_stream(
        self, stream_id: StreamId, epoch: StreamEpoch, start_offset: Offset, *, keep: bool = False
    ) -> None:
        """See StreamMetadata.trim_stream."""
        message = m.TrimStream(
            node_id=self._node.node_id,
            node_epoch=self._node.node_epoch,
            stream_id=stream_id,
            epoch=epoch,
            start_offset=start_offset,
            keep=keep,
        )
        try:
            await self._client.trim_stream(message, timeout_s=self._timeout_s)
        except StreamRefused as error:
            raise _stream_error(stream_id, error.status, error.detail) from error
        except (RequestRefused, FollowerStopped) as error:
            raise self._without_stream(error) from error

    def objects(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit: int
    ) -> list[ObjectRange]:
        """See StreamMetadata.objects."""
        return self._follower.image.find_ranges(stream_id, start_offset, end_offset, limit)

    def committed_end(self, stream_id: StreamId) -> Offset:
        """See StreamMetadata.committed_end. Return 0 for a stream that does not exist."""
        state = self._follower.image.streams.get(stream_id)
        return Offset(0) if state is None else state.end_offset

    def first_in_wal_store(self, stream_id: StreamId) -> Offset | None:
        """See StreamMetadata.first_in_wal_store."""
        return self._follower.image.first_in_wal_store(stream_id)

    def is_closed(self, stream_id: StreamId) -> bool:
        """See StreamMetadata.is_closed."""
        state = self._follower.image.streams.get(stream_id)
        return state is not None and not state.opened

    def wal_store_bytes(self) -> int:
        """See StreamMetadata.wal_store_bytes."""
        return rewritable_bytes(self._follower.image)

    def has_object(self, wal_key: str) -> bool:
        """See StreamMetadata.has_object."""
        return self._follower.image.objects.in_place(wal_key) is not None

    def streams_owned_by(self, owner: BrokerIncarnation) -> dict[StreamId, Offset]:
        """See StreamMetadata.streams_owned_by."""
        streams = self._follower.image.streams
        states = (streams.known(stream_id) for stream_id in sorted(streams.opened_by(owner)))
        return {state.stream_id: state.next_offset for state in states}

    def data_streams_of(self, stream_ids: Iterable[StreamId]) -> dict[StreamId, StreamId]:
        """See StreamMetadata.data_streams_of. A stream whose partition does not exist is mapped to
        itself.
        """
        return data_streams_of(self._follower.image, stream_ids)

    def is_wal_store_ended(self, store_id: WalStoreId) -> bool:
        """See StreamMetadata.is_wal_store_ended."""
        return self._follower.image.nodes.is_wal_store_ended(store_id)

    def wal_store_of(self, writer: BrokerIncarnation) -> WalStoreIdentity | None:
        """See StreamMetadata.wal_store_of."""
        return self._follower.image.wal_store_of(writer)

    def accepted_losses(self, writer: BrokerIncarnation) -> Collection[WalSequence]:
        """See StreamMetadata.accepted_losses."""
        return accepted_losses(self._follower.image, writer)

    async def commit_recovered(
        self,
        failed: BrokerIncarnation,
        objects: Sequence[NewObject],
        *,
        done: bool,
        end: WalSequence,
        held: Sequence[StreamId] = (),
    ) -> None:
        """See StreamMetadata.commit_recovered."""
        chunks = list(_recovery_chunks(objects)) or [[]]
        for number, chunk in enumerate(chunks, start=1):
            message = m.CommitRecovered(
                node_id=self._node.node_id,
                node_epoch=self._node.node_epoch,
                failed_node_id=failed.node_id,
                failed_node_epoch=failed.node_epoch,
                objects=[_object(item) for item in chunk],
                done=done and number == len(chunks),
                end=end,
                held=list(held),
            )
            try:
                await self._client.commit_recovered(message, timeout_s=self._timeout_s)
            except StreamRefused as error:
                raise await self._recovery_refused(error, chunk) from error
            except (RequestRefused, FollowerStopped) as error:
                raise self._without_stream(error) from error

    def _without_stream(self, error: RequestRefused | FollowerStopped) -> Exception:
        """Convert a rejection that is not related to a stream: to WalFenced if this incarnation has
        ended, otherwise to the original error.
        """
        if isinstance(error, NodeRefused) or self._follower.fenced:
            return WalFenced(_NO_SEQUENCE, f"the controller ({error})")
        return error

    async def _commit_refused(self, error: StreamRefused, commit: CommitObjects) -> Exception:
        """Return the error for the stream that caused the rejection, according to an image that is
        at least as new as the rejection.
        """
        image = await self._image_at(error)
        parts = [part for item in commit.objects for part in item.ranges]
        involved = (part.stream_id for part in parts)
        ids = dict.fromkeys(
            (
                *involved,
                *(close.stream_id for close in commit.closes),
                *(r.stream_id for r in commit.replaced),
            )
        )
        epochs = {close.stream_id: close.epoch for close in commit.closes}
        for stream_id in ids:
            state = image.streams.get(stream_id)
            if (
                state is None
                or not _is_ours(state, self._node)
                or epochs.get(stream_id, state.epoch) != state.epoch
            ):
                return _stream_error(stream_id, error.status, error.detail)
        return _gap(image, parts) or error

    async def _recovery_refused(
        self, error: StreamRefused, objects: Sequence[NewObject]
    ) -> Exception:
        image = await self._image_at(error)
        return _gap(image, [part for item in objects for part in item.ranges]) or error

    async def _image_at(self, error: RequestRefused) -> MetadataImage:
        await self._follower.reached(
            error.offset, asyncio.get_running_loop().time() + self._timeout_s
        )
        return self._follower.image


def _with_move(message: m.Commit, move: WalMove) -> m.Commit:
    target = move.wal_store
    return msgspec.structs.replace(
        message,
        moves_wal=True,
        wal_store_id=IN_STORE if target is None else target.store_id,
        wal_store_uuid=None if target is None else target.uuid,
    )


def _is_ours(state: StreamState, node: BrokerIncarnation) -> bool:
    return state.opened and state.owner == node


def _opened(request: OpenStream, item: m.OpenedStreamItem) -> OpenedStream | Exception:
    if item.status is m.Status.OK:
        return OpenedStream(request.stream_id, request.epoch, item.start_offset, item.end_offset)
    return _stream_error(request.stream_id, item.status, item.detail)


def _stream_error(stream_id: StreamId, status: m.Status, detail: str) -> StreamError:
    if status is m.Status.STREAM_NOT_CLOSED:
        return StreamNotClosed(stream_id)
    if status is m.Status.STREAM_NOT_OPENED:
        return StreamNotOpened(stream_id)
    return StreamFenced(stream_id, detail or status.name)


def _gap(image: MetadataImage, parts: Iterable[StreamRange]) -> NotContiguous | None:
    """Return the first range that starts neither at the committed end nor at the end of the
    previous range in the commit.
    """
    ends: dict[StreamId, Offset] = {}
    for part in parts:
        state = image.streams.get(part.stream_id)
        expected = ends.get(part.stream_id, state.next_offset if state is not None else Offset(0))
        if part.start_offset != expected:
            return NotContiguous(part.stream_id, expected, part.start_offset)
        ends[part.stream_id] = part.end_offset
    return None


def _object(item: NewObject) -> m.CommitObject:
    ranges = [
        RangeEntry(
            part.stream_id,
            part.start_offset,
            part.end_offset,
            part.record_count,
            part.size_bytes,
            part.max_timestamp_ms,
        )
        for part in item.ranges
    ]
    return m.CommitObject(
        object_id=item.object_id,
        key=item.key,
        role=int(item.role),
        size_bytes=item.size_bytes,
        ranges=ranges,
    )


def _recovery_chunks(objects: Sequence[NewObject]) -> Iterable[list[NewObject]]:
    """Split objects into requests in slot order. The ranges of one slot stay in the same
    request.
    """
    chunk: list[NewObject] = []
    ranges = 0
    for item in objects:
        if chunk and (
            len(chunk) == RECOVERED_OBJECTS_PER_REQUEST
            or ranges + len(item.ranges) > RECOVERED_RANGES_PER_REQUEST
        ):
            yield chunk
            chunk, ranges = [], 0
        chunk.append(item)
        ranges += len(item.ranges)
    if chunk:
        yield chunk
