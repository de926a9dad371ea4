"""The controller's two gRPC services."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import msgspec
import structlog

from penstock.base.clock import MonotonicClock, WallClock
from penstock.base.ids import NodeEpoch, NodeId
from penstock.base.version import VERSION
from penstock.controller.active.audit import AdminLog
from penstock.controller.active.forwarding import RequestAuthorizer
from penstock.controller.active.sessions import Sessions
from penstock.controller.active.writer import Committed, Runtime, Submission
from penstock.controller.api.caller_checks import CallerRefused, Gate
from penstock.controller.api.callers import EXCHANGE, FOLLOW, CallerRole
from penstock.controller.api.errors import JournalFailed, NotLeader, QuorumClosed
from penstock.controller.api.follower import REPLACED_TEXT, STOPPING_DETAIL
from penstock.controller.api.messages import (
    ControllerStatus,
    DescribeController,
    FollowRequest,
    Message,
    MetadataBatch,
    Reply,
    Status,
)
from penstock.controller.api.tls import TlsFiles
from penstock.controller.api.transport import (
    END_OF_STREAM,
    EPOCH_KEY,
    REQUEST_ID_KEY,
    Listener,
    StatusCode,
    StreamContext,
    StreamHandler,
    UnaryContext,
)
from penstock.controller.backup.snapshots import copy_image, encode_copy
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.records import ControllerEpoch, MetadataOffset
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.raft.replicated_log import Quorum

_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_follow_decoder = msgspec.msgpack.Decoder(FollowRequest)

Handle = Callable[[Any, Submission], Awaitable[Reply[Any]]]
"""Executes a request and returns the reply."""


About = Callable[[Any, float | None], Awaitable[Reply[Any]]]
"""Called with (request, seconds left). Returns the reply."""

CopyImage = Callable[[], Awaitable[tuple[ImageCopy, MetadataOffset]]]

CopyStandby = Callable[[], tuple[ImageCopy, MetadataOffset] | None]
"""Returns a copy of the image, or None if no image contains only committed records."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Handles requests and keeps sessions while this controller leads.

    methods: handlers by the name of the request class. forwarding: authorizes requests that brokers
    forward. backup_offset: returns the offset below which all metadata is in the store, both for a
    recovery and for readers.
    """

    runtime: Runtime
    sessions: Sessions
    methods: Mapping[str, Handle]
    forwarding: RequestAuthorizer
    backup_offset: Callable[[], MetadataOffset]


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a controller in the quorum. name: as in ControllerStatus."""

    name: str
    directory_id: str = ""
    address: str = ""

    @property
    def is_outside(self) -> bool:
        return self.name == OUTSIDE


OUTSIDE = "outside"
_ALONE = Role("voter")


class ControllerService:
    """Serves both gRPC services on one port. While this controller is active, it handles requests
    and maintains sessions; otherwise, it redirects requests, and serves only committed records.

    Requests are decoded and validated before they are queued. Followers receive only committed
    records, in order, from the log or, if the log starts too late, from a snapshot of the image
    between two batches. A slow follower does not delay others: its stream blocks and delivers no
    heartbeats, so the follower closes it.

    standby: copies the image while this controller is not active. raft: serves the streams of other
    controllers.
    """

    def __init__(
        self,
        config: ControllerConfig,
        quorum: Quorum,
        requests: Sequence[type[Message]],
        *,
        standby: CopyStandby,
        raft: StreamHandler,
        now: MonotonicClock,
        now_ms: WallClock,
        about: Mapping[type[Message], About] | None = None,
        role: Callable[[], Role] = lambda: _ALONE,
        tls: TlsFiles | None = None,
        gate: Gate | None = None,
    ) -> None:
        """about: handlers of quorum requests, which do not wait for the writer. role: returns the
        role of this controller in the quorum. tls: None for plaintext. gate: checks callers; if
        None, every caller may call every method.
        """
        self._gate = gate = gate or Gate()
        self._audit = AdminLog(gate, now)
        self._config = config
        self._quorum = quorum
        self._standby = standby
        self._now = now
        self._wall_ms = now_ms
        self._lead: Lead | None = None
        self._leading = asyncio.Event()
        self._followers: dict[asyncio.Task[None], FollowRequest] = {}
        self._out_of_turn_tasks: set[asyncio.Task[Reply[Any]]] = set()
        self._stopping = False
        unary = {request.__name__: self._unary(request) for request in requests}
        unary[DescribeController.__name__] = self._describe
        unary |= {
            request.__name__: self._out_of_turn(request, response)
            for request, response in (about or {}).items()
        }
        self._role = role
        self._listener = Listener(
            {name: gate.unary(name, handler) for name, handler in unary.items()},
            gate.stream(FOLLOW, self._follow),
            gate.stream(EXCHANGE, raft),
            tls=tls,
            on_handshake=gate.handshakes.begun,
        )

    async def start(self) -> int:
        """Start serving, and return the bound port."""
        return await self._listener.start(self._config.host, self._config.port)

    async def stop(self) -> None:
        """End all streams, informing the followers that this controller is stopping. Call this
        after fencing has stopped. Calls in progress have 0.2 s to complete.
        """
        self._stopping = True
        for task in list(self._followers):
            task.cancel()
        await self._listener.stop(0.2)
        for request in list(self._out_of_turn_tasks):
            request.cancel()

    @property
    def is_leading(self) -> bool:
        return self._lead is not None

    async def wait_leading(self) -> None:
        await self._leading.wait()

    def lead(self, lead: Lead) -> None:
        """Start serving as the active controller."""
        self._lead = lead
        self._leading.set()

    def renounce(self) -> None:
        """Stop serving as the active controller. Brokers are redirected to the new one; observers
        may stay.
        """
        self._lead = None
        self._leading.clear()
        for task, hello in list(self._followers.items()):
            if hello.node_id >= 0:
                task.cancel()

    def disconnect(self, node_id: NodeId, node_epoch: NodeEpoch) -> None:
        """End the streams of a fenced incarnation and of earlier ones, so that the broker detects
        the fence immediately.
        """
        for task, hello in list(self._followers.items()):
            if hello.node_id == node_id and hello.node_epoch <= node_epoch:
                task.cancel()

    async def _describe(self, data: bytes, context: UnaryContext) -> bytes:
        """Describe this controller. Every controller responds to this without the writer, even if
        it is overloaded. The offset is the end of the committed records.
        """
        del data, context
        leadership, role = self._quorum.leadership, self._role()
        status = ControllerStatus(
            cluster_id=self._config.cluster_id,
            controller_id=self._config.controller_id,
            controller_epoch=leadership.epoch,
            committed_offset=self._quorum.committed_offset,
            active=leadership.active and self._lead is not None,
            leader=leadership.address,
            role="leader" if leadership.active else role.name,
            directory_id=role.directory_id,
            address=role.address,
            members=list(self._quorum.controllers),
            version=VERSION,
            now_ms=self._wall_ms(),
        )
        return _encode(Reply(controller_epoch=leadership.epoch, value=status))

    def _out_of_turn(
        self, request_type: type[Message], response: About
    ) -> Callable[[bytes, UnaryContext], Awaitable[bytes]]:
        decoder = msgspec.msgpack.Decoder(request_type)

        async def handle(data: bytes, context: UnaryContext) -> bytes:
            reply: Reply[Any]
            leadership = self._quorum.leadership
            metadata = dict(context.invocation_metadata())
            try:
                request = decoder.decode(data)
                self._gate.check_request(request, context)
                stale = (
                    self._of_another_epoch(metadata, leadership.epoch)
                    if leadership.active
                    else None
                )
                reply = stale or await self._shielded(
                    response(request, context.time_remaining()),
                    self._audit.entry(request, context),
                )
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reply = Reply(
                    status=Status.INVALID_REQUEST,
                    detail=f"the request is not a valid {request_type.__name__}: {error}",
                )
            except NotLeader as error:
                reply = self._not_leader(error.leader)
            except CallerRefused as error:
                await context.abort(StatusCode.UNAUTHENTICATED, str(error))
                raise
            except (QuorumClosed, JournalFailed) as error:
                await context.abort(StatusCode.UNAVAILABLE, str(error))
                raise
            return _encode(reply)

        return handle

    async def _shielded(self, response: Awaitable[Reply[Any]], committed: Committed) -> Reply[Any]:
        """Wait for the response. If the caller cancels its call, the request continues."""
        task = asyncio.ensure_future(response)
        self._out_of_turn_tasks.add(task)

        def done(task: asyncio.Future[Reply[Any]]) -> None:
            self._out_of_turn_tasks.discard(task)
            if not task.cancelled() and task.exception() is None:
                committed(task.result())

        task.add_done_callback(done)
        return await asyncio.shield(task)

    def _unary(
        self, request_type: type[Message]
    ) -> Callable[[bytes, UnaryContext], Awaitable[bytes]]:
        decoder = msgspec.msgpack.Decoder(request_type)
        name = request_type.__name__

        async def handle(data: bytes, context: UnaryContext) -> bytes:
            try:
                reply = await self._respond(name, decoder, data, context)
            except CallerRefused as error:
                await context.abort(StatusCode.UNAUTHENTICATED, str(error))
                raise
            except (QuorumClosed, JournalFailed) as error:
                await context.abort(StatusCode.UNAVAILABLE, str(error))
                raise
            except TimeoutError as error:
                await context.abort(StatusCode.DEADLINE_EXCEEDED, str(error))
                raise
            return _encode(reply)

        return handle

    async def _respond(
        self, name: str, decoder: msgspec.msgpack.Decoder[Any], data: bytes, context: UnaryContext
    ) -> Reply[Any]:
        metadata = dict(context.invocation_metadata())
        lead = self._lead
        if lead is None:
            return self._not_leader(self._quorum.leadership.address)
        if (refused := self._of_another_epoch(metadata, lead.runtime.epoch)) is not None:
            return refused
        limit = self._config.request_bytes_max
        if len(data) > limit:
            return Reply(
                status=Status.INVALID_REQUEST,
                detail=f"the request has {len(data)} bytes, {limit} are allowed: split it",
            )
        try:
            request = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Reply(
                status=Status.INVALID_REQUEST, detail=f"the request is not a valid {name}: {error}"
            )
        self._gate.check_request(request, context)
        refusal = lead.forwarding.refusal(request, self._gate.caller(context), lead.runtime.image)
        if refusal:
            self._audit.refused(request, refusal, context)
            return Reply(
                status=Status.NOT_AUTHORIZED,
                detail=f"the controller refuses this {name}: {refusal}",
                controller_epoch=lead.runtime.epoch,
            )
        request_id = str(metadata.get(REQUEST_ID_KEY, ""))[:64]
        try:
            return await lead.methods[name](
                request,
                Submission(
                    context.time_remaining(),
                    len(data),
                    request_id,
                    self._audit.entry(request, context),
                ),
            )
        except NotLeader as error:
            return self._not_leader(error.leader)

    def _of_another_epoch(
        self, metadata: Mapping[str, object], epoch: ControllerEpoch
    ) -> Reply[Any] | None:
        """Return a rejection if the attempt's epoch differs from this leader's epoch, otherwise
        None.

        A later epoch means that another controller leads and this one has not detected it yet. With
        an earlier epoch or none, the attempt may be late, and another request may already have
        overwritten its effect.
        """
        named = str(metadata.get(EPOCH_KEY, ""))[:20]
        named_epoch = int(named) if named.isdecimal() else 0
        if named_epoch > epoch:
            return self._not_leader("")
        if named_epoch < epoch:
            return Reply(status=Status.STALE_CONTROLLER_EPOCH, controller_epoch=epoch)
        return None

    def _not_leader(self, leader: str) -> Reply[Any]:
        return Reply(
            status=Status.NOT_LEADER, detail=leader, controller_epoch=self._quorum.leadership.epoch
        )

    async def _copy_image(self) -> tuple[ImageCopy, MetadataOffset]:
        """Copy the image. Raise _StreamRefused while this controller gains or loses leadership,
        because the image then belongs to the writer and may contain uncommitted records.
        """
        if self._lead is not None:
            return await self._lead.runtime.with_committed_image(copy_image)
        copied = self._standby()
        if copied is None:
            raise _StreamRefused(StatusCode.FAILED_PRECONDITION, self._quorum.leadership.address)
        return copied

    # --- Follow -----------------------------------------------------------------------------------

    async def _follow(self, _: object, context: StreamContext) -> None:
        """Serve one follower in a task of its own, which a fence or a stop can end with a
        reason.
        """
        data = await context.read()
        if data is END_OF_STREAM:
            return
        hello = await self._hello_of(cast("bytes", data), context)
        if hello is None:
            return
        # Observers must not take the place of brokers, because those brokers would be fenced.
        is_observer = hello.node_id < 0
        count = sum((other.node_id < 0) == is_observer for other in self._followers.values())
        if count >= self._config.followers_count_max:
            await context.abort(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{count} {'observers' if is_observer else 'brokers'} are connected, the maximum",
            )
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
                _log.warning("metadata_stream_failed", node_id=hello.node_id, error=detail)
                await context.abort(StatusCode.UNAVAILABLE, detail)
        elif self._stopping:
            await context.abort(StatusCode.UNAVAILABLE, STOPPING_DETAIL)
        elif self._lead is None:
            await context.abort(StatusCode.FAILED_PRECONDITION, self._quorum.leadership.address)
        else:
            await context.abort(
                StatusCode.PERMISSION_DENIED, _refusal(self._lead.sessions, hello, "is fenced")
            )

    async def _hello_of(self, data: bytes, context: StreamContext) -> FollowRequest | None:
        """Return the first message, or None if the stream was ended because the message is invalid
        or from a caller that is not this node.
        """
        try:
            hello = _follow_decoder.decode(data)
            if hello.node_id >= 0:
                self._gate.check_node(FOLLOW, CallerRole.BROKER, hello.node_id, context)
        except CallerRefused as error:
            await context.abort(StatusCode.UNAUTHENTICATED, str(error))
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            await context.abort(StatusCode.INVALID_ARGUMENT, f"not a valid FollowRequest: {error}")
            return None
        return hello

    async def _serve_follower(self, hello: FollowRequest, context: StreamContext) -> None:
        session: _Session | None = None
        if self._role().is_outside:
            raise _StreamRefused(StatusCode.FAILED_PRECONDITION, self._quorum.leadership.address)
        if hello.node_id >= 0:
            lead = self._lead
            if lead is None:
                raise _StreamRefused(
                    StatusCode.FAILED_PRECONDITION, self._quorum.leadership.address
                )
            if lead.sessions.is_overtaken(hello.node_id, hello.node_epoch, hello.attempt):
                raise _StreamRefused(StatusCode.ABORTED, _moved(hello))
            stream = lead.sessions.opened(
                hello.node_id, hello.node_epoch, self._now_ms(), hello.attempt
            )
            if stream is None:
                raise _StreamRefused(
                    StatusCode.PERMISSION_DENIED,
                    _refusal(lead.sessions, hello, "has no session"),
                )
            session = _Session(lead.sessions, hello, stream)
        feed = _Feed(
            hello,
            self._quorum,
            self._copy_image,
            self._config,
            context,
            backup_offset=self._backup_offset,
            session=session,
        )
        feeding = asyncio.get_running_loop().create_task(feed.run())
        reading = asyncio.get_running_loop().create_task(
            self._read_heartbeats(session, feed, context)
        )
        try:
            await asyncio.wait((feeding, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if session is not None:
                session.sessions.broken(
                    hello.node_id, hello.node_epoch, session.stream, self._now_ms()
                )
            for task in (feeding, reading):
                task.cancel()
            await asyncio.wait((feeding, reading))
        for task in (feeding, reading):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _read_heartbeats(
        self, session: "_Session | None", feed: "_Feed", context: StreamContext
    ) -> None:
        """Read heartbeats until the follower closes its side of the stream."""
        while (data := await context.read()) is not END_OF_STREAM:
            request = _follow_decoder.decode(cast("bytes", data))
            if session is not None:
                session.heard(self._now_ms())
            feed.heard = request.heartbeat

    def _backup_offset(self) -> MetadataOffset:
        """Return the end of the backup, or 0 if this controller is not the leader and thus does not
        know it.
        """
        return MetadataOffset(0) if self._lead is None else self._lead.backup_offset()

    def _now_ms(self) -> int:
        return int(self._now() * 1_000)


class _StreamRefused(Exception):
    """Ends a follower's stream, with a gRPC status that contains the reason."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class _Session:
    """A broker's session on one stream, and the leader's sessions that contain it."""

    sessions: Sessions
    node: FollowRequest
    stream: int

    def heard(self, now_ms: int) -> None:
        node = self.node
        if self.sessions.heard(node.node_id, node.node_epoch, self.stream, now_ms):
            return
        if not self.sessions.is_current(node.node_id, node.node_epoch):
            raise _StreamRefused(
                StatusCode.PERMISSION_DENIED, _refusal(self.sessions, node, "has no session")
            )
        raise _StreamRefused(StatusCode.ABORTED, _moved(node))

    def check_not_replaced(self) -> None:
        """End the stream if a newer incarnation has registered. The old one may still read without
        sending heartbeats.
        """
        if self.sessions.is_replaced(self.node.node_id, self.node.node_epoch):
            raise _StreamRefused(
                StatusCode.PERMISSION_DENIED, _refusal(self.sessions, self.node, REPLACED_TEXT)
            )


def _moved(hello: FollowRequest) -> str:
    return (
        f"the session of this node uses another stream: node {hello.node_id} epoch"
        f" {hello.node_epoch}"
    )


def _refusal(sessions: Sessions, hello: FollowRequest, reason: str) -> str:
    """Return the message for an incarnation that is denied a session."""
    if sessions.is_replaced(NodeId(hello.node_id), NodeEpoch(hello.node_epoch)):
        reason = REPLACED_TEXT
    return f"node {hello.node_id} epoch {hello.node_epoch} {reason}"


class _Feed:
    """Sends records to one follower: first the missing ones, then every commit, and at least one
    message per heartbeat interval.
    """

    def __init__(
        self,
        hello: FollowRequest,
        quorum: Quorum,
        copy: CopyImage,
        config: ControllerConfig,
        context: StreamContext,
        *,
        backup_offset: Callable[[], MetadataOffset],
        session: _Session | None,
    ) -> None:
        self._hello = hello
        self._session = session
        self._next = hello.from_offset
        self.heard = hello.heartbeat
        self._quorum = quorum
        self._copy = copy
        self._backup_offset = backup_offset
        self._config = config
        self._context = context
        self._controllers: tuple[str, ...] = ()
        """The controller addresses that were sent to the follower."""

    async def run(self) -> None:
        quorum, max_bytes = self._quorum, self._config.batch_bytes_max
        interval_s = self._config.heartbeat_interval_ms / 1_000
        if self._next > quorum.committed_offset and not quorum.leadership.active:
            await quorum.wait_committed(MetadataOffset(self._next - 1))
        if not quorum.first_offset <= self._next <= quorum.committed_offset:
            await self._send_snapshot()
        while self._next < quorum.committed_offset:
            await self._send_committed(max_bytes)
        await self._send(self._next, [])
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await quorum.wait_committed(self._next)
            if self._session is not None:
                self._session.check_not_replaced()
            await self._send_committed(max_bytes)

    async def _send_committed(self, max_bytes: int) -> None:
        """Send one message. Without records, it is a heartbeat. A follower that needs records from
        before the start of the log first receives a snapshot.
        """
        if self._next < self._quorum.first_offset:
            await self._send_snapshot()
        committed = self._quorum.read(self._next, max_bytes)
        await self._send(self._next, [msgspec.Raw(record) for record in committed.records])
        self._next = committed.end_offset

    async def _send(
        self,
        base: MetadataOffset,
        records: list[msgspec.Raw],
        *,
        snapshot: bool = False,
        reset: bool = False,
    ) -> None:
        controllers = self._quorum.controllers
        news, self._controllers = controllers != self._controllers, controllers
        batch = MetadataBatch(
            base_offset=base,
            end_offset=base if snapshot else MetadataOffset(base + len(records)),
            controller_epoch=self._quorum.leadership.epoch,
            records=records,
            snapshot=snapshot,
            reset=reset,
            heard=self.heard,
            backup_offset=self._backup_offset(),
            controllers=list(controllers) if news else [],
            session_timeout_ms=self._config.session_timeout_ms,
            session_grace_ms=self._config.session_grace_ms,
        )
        await self._context.write(_encode(batch))

    async def _send_snapshot(self) -> None:
        """Send the current image as a snapshot, which ends with an empty batch."""
        copied, offset = await self._copy()
        encoded = await encode_copy(copied)
        unsent = iter(encoded)
        reset = True
        while chunk := _take_bytes(unsent, self._config.batch_bytes_max):
            await self._send(offset, chunk, snapshot=True, reset=reset)
            reset = False
        self._next = offset
        await self._send(offset, [])
        _log.info(
            "follower_snapshot_sent",
            node_id=self._hello.node_id,
            offset=offset,
            records=len(encoded),
        )


def _take_bytes(records: Iterator[msgspec.Raw], max_bytes: int) -> list[msgspec.Raw]:
    """Return records of about `max_bytes` in total, at least one if any are left."""
    chunk: list[msgspec.Raw] = []
    size_bytes = 0
    while size_bytes < max_bytes and (taken := list(islice(records, 1))):
        chunk += taken
        size_bytes += len(memoryview(taken[0]))
    return chunk
