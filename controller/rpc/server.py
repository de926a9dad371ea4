"""The controller's two gRPC services over the runtime.

Invariants: a request is decoded and checked before it is queued; followers get committed records only, in order, from the log or, when the
log no longer reaches back, from a snapshot of the image between two batches. A follower that reads slowly holds up nobody: its stream
blocks, goes without heartbeats and is given up by its own side. Must not decide anything: managers do. Source: KRaft `ControllerApis`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import msgspec
import structlog

from controller.config import ControllerConfig
from controller.errors import JournalFailed, NotLeader, QuorumClosed
from controller.metadata.records import MetadataOffset
from controller.quorum import Quorum
from controller.rpc.follower import STOPPING_DETAIL
from controller.rpc.messages import FollowRequest, Message, MetadataBatch, Reply, Status
from controller.rpc.transport import END_OF_STREAM, REQUEST_ID_KEY, Listener, StatusCode, StreamContext, UnaryContext
from controller.runtime import Runtime
from controller.sessions import Sessions
from controller.snapshots import copy_image, encode_records
from stream.clock import MonotonicClock
from stream.ids import NodeEpoch, NodeId

_log = structlog.get_logger()
_encode = msgspec.msgpack.Encoder().encode
_follow_decoder = msgspec.msgpack.Decoder(FollowRequest)

Handle = Callable[[Any, float | None, int, str], Awaitable[Reply[Any]]]
"""(request, seconds left, size in bytes, request id) -> reply."""


@dataclass(frozen=True, slots=True)
class Method:
    request_type: type[Message]
    handle: Handle


class ControllerService:
    """Serves one runtime on one port."""

    def __init__(
        self,
        config: ControllerConfig,
        quorum: Quorum,
        runtime: Runtime,
        sessions: Sessions,
        *,
        methods: Mapping[str, Method],
        now: MonotonicClock,
    ) -> None:
        self._config = config
        self._quorum = quorum
        self._runtime = runtime
        self._sessions = sessions
        self._now = now
        self._followers: dict[asyncio.Task[None], FollowRequest] = {}
        self._stopping = False
        self._listener = Listener({name: self._unary(method) for name, method in methods.items()}, self._follow)

    async def start(self) -> int:
        """Serve; returns the bound port."""
        return await self._listener.start(self._config.host, self._config.port)

    async def stop(self) -> None:
        """Call when nobody fences any more: followers are told so. Calls under way get a moment to end."""
        self._stopping = True
        for task in list(self._followers):
            task.cancel()
        await self._listener.stop(0.2)

    def disconnect(self, node_id: NodeId, node_epoch: NodeEpoch) -> None:
        """End the streams of an incarnation that was fenced (and of earlier ones), so that it hears of it at once."""
        for task, hello in list(self._followers.items()):
            if hello.node_id == node_id and hello.node_epoch <= node_epoch:
                task.cancel()

    def _unary(self, method: Method) -> Callable[[bytes, UnaryContext], Awaitable[bytes]]:
        decoder = msgspec.msgpack.Decoder(method.request_type)

        async def handle(data: bytes, context: UnaryContext) -> bytes:
            try:
                reply = await self._answer(method, decoder, data, context)
            except (QuorumClosed, JournalFailed) as error:
                await context.abort(StatusCode.UNAVAILABLE, str(error))
                raise
            except TimeoutError as error:
                await context.abort(StatusCode.DEADLINE_EXCEEDED, str(error))
                raise
            return _encode(reply)

        return handle

    async def _answer(self, method: Method, decoder: msgspec.msgpack.Decoder[Any], data: bytes, context: UnaryContext) -> Reply[Any]:
        limit = self._config.request_bytes_max
        if len(data) > limit:
            return Reply(status=Status.INVALID_REQUEST, detail=f"the request has {len(data)} bytes, {limit} are allowed: split it")
        try:
            request = decoder.decode(data)
        except msgspec.DecodeError as error:
            return Reply(status=Status.INVALID_REQUEST, detail=f"the request is not a valid {method.request_type.__name__}: {error}")
        request_id = next((value for key, value in context.invocation_metadata() if key == REQUEST_ID_KEY), "")
        try:
            return await method.handle(request, context.time_remaining(), len(data), request_id[:64])
        except NotLeader as error:
            return Reply(status=Status.NOT_LEADER, detail=error.leader)

    # --- Follow ---------------------------------------------------------------------------------------------------------------------

    async def _follow(self, _: object, context: StreamContext) -> None:
        """One follower. Runs in a task of its own, so that a fence or a stop can end it with a reason."""
        data = await context.read()
        if data is END_OF_STREAM:
            return
        try:
            hello = _follow_decoder.decode(cast("bytes", data))
        except msgspec.DecodeError as error:
            await context.abort(StatusCode.INVALID_ARGUMENT, f"not a valid FollowRequest: {error}")
            return
        if len(self._followers) >= self._config.followers_count_max:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, f"{len(self._followers)} followers are connected, no more are allowed")
            return
        task = asyncio.get_running_loop().create_task(self._serve_follower(hello, context))
        self._followers[task] = hello
        try:
            await asyncio.wait((task,))
        finally:
            del self._followers[task]
            task.cancel()
        if not task.cancelled():
            failure = task.exception()
            if isinstance(failure, _StreamRefused):
                await context.abort(failure.code, failure.detail)
            elif failure is not None:
                detail = f"{type(failure).__name__}: {failure}"
                _log.warning("follower_stream_failed", node_id=hello.node_id, error=detail)
                await context.abort(StatusCode.UNAVAILABLE, detail)
        elif self._stopping:
            await context.abort(StatusCode.UNAVAILABLE, STOPPING_DETAIL)
        else:
            await context.abort(StatusCode.PERMISSION_DENIED, f"node {hello.node_id} epoch {hello.node_epoch} is fenced")

    async def _serve_follower(self, hello: FollowRequest, context: StreamContext) -> None:
        leadership = self._quorum.leadership
        if not leadership.active:
            raise _StreamRefused(StatusCode.FAILED_PRECONDITION, leadership.address)
        stream: int | None = None
        if hello.node_id >= 0:
            stream = self._sessions.opened(hello.node_id, hello.node_epoch, self._now_ms())
            if stream is None:
                raise _StreamRefused(StatusCode.PERMISSION_DENIED, f"node {hello.node_id} epoch {hello.node_epoch} has no session")
        feed = _Feed(hello, self._quorum, self._runtime, self._config, context)
        feeding = asyncio.get_running_loop().create_task(feed.run())
        hearing = asyncio.get_running_loop().create_task(self._hear(hello, stream, feed, context))
        try:
            await asyncio.wait((feeding, hearing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if stream is not None:
                self._sessions.broken(hello.node_id, hello.node_epoch, stream, self._now_ms())
            for task in (feeding, hearing):
                task.cancel()
            await asyncio.wait((feeding, hearing))
        for task in (feeding, hearing):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _hear(self, hello: FollowRequest, stream: int | None, feed: "_Feed", context: StreamContext) -> None:
        """Heartbeats, until the follower ends its side."""
        while (data := await context.read()) is not END_OF_STREAM:
            request = _follow_decoder.decode(cast("bytes", data))
            if stream is not None and not self._sessions.heard(hello.node_id, hello.node_epoch, stream, self._now_ms()):
                detail = f"the session of node {hello.node_id} epoch {hello.node_epoch} is over or has moved to another stream"
                raise _StreamRefused(StatusCode.ABORTED, detail)
            feed.heard = request.heartbeat

    def _now_ms(self) -> int:
        return int(self._now() * 1_000)


class _StreamRefused(Exception):
    """Ends a follower's stream with a gRPC status that tells it why."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class _Feed:
    """What goes to one follower: at first what it lacks, then every commit, then at least one message in each heartbeat interval."""

    def __init__(self, hello: FollowRequest, quorum: Quorum, runtime: Runtime, config: ControllerConfig, context: StreamContext) -> None:
        self._hello = hello
        self._next = hello.from_offset
        self.heard = hello.heartbeat
        self._quorum = quorum
        self._runtime = runtime
        self._config = config
        self._context = context

    async def run(self) -> None:
        quorum, max_bytes = self._quorum, self._config.batch_bytes_max
        interval_s = self._config.heartbeat_interval_ms / 1_000
        if not quorum.first_offset <= self._next <= quorum.committed_offset:
            await self._send_snapshot()
        while self._next < quorum.committed_offset:
            await self._send_committed(max_bytes)
        await self._send(self._next, [])
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await quorum.wait_committed(self._next)
            await self._send_committed(max_bytes)

    async def _send_committed(self, max_bytes: int) -> None:
        """One message; without records, if there are none, it is the heartbeat. A follower that the log has left behind begins anew."""
        if self._next < self._quorum.first_offset:
            await self._send_snapshot()
        committed = self._quorum.read(self._next, max_bytes)
        await self._send(self._next, [msgspec.Raw(record) for record in committed.records])
        self._next = committed.end_offset

    async def _send(self, base: MetadataOffset, records: list[msgspec.Raw], *, snapshot: bool = False, reset: bool = False) -> None:
        batch = MetadataBatch(
            base_offset=base,
            end_offset=base if snapshot else MetadataOffset(base + len(records)),
            controller_epoch=self._quorum.leadership.epoch,
            records=records,
            snapshot=snapshot,
            reset=reset,
            heard=self.heard,
            session_timeout_ms=self._config.session_timeout_ms,
            session_grace_ms=self._config.session_grace_ms,
        )
        await self._context.write(_encode(batch))

    async def _send_snapshot(self) -> None:
        """The follower begins anew with the image as it is now. The empty batch behind the snapshot ends it."""
        records, offset = await self._runtime.between(copy_image)
        encoded = iter(await encode_records(records))
        reset = True
        while chunk := _take_bytes(encoded, self._config.batch_bytes_max):
            await self._send(offset, chunk, snapshot=True, reset=reset)
            reset = False
        self._next = offset
        await self._send(offset, [])
        _log.info("follower_snapshot_sent", node_id=self._hello.node_id, offset=offset, records=len(records))


def _take_bytes(records: Iterator[msgspec.Raw], max_bytes: int) -> list[msgspec.Raw]:
    """Records of together about `max_bytes`, at least one if there is one."""
    chunk: list[msgspec.Raw] = []
    size_bytes = 0
    while size_bytes < max_bytes and (taken := list(islice(records, 1))):
        chunk += taken
        size_bytes += len(memoryview(taken[0]))
    return chunk
