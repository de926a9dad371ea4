"""Maintain a local copy of the metadata by following the controller's stream of committed records,
which is also the broker's session.
"""

import asyncio
import heapq
import random
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import count
from typing import Any, cast

import msgspec
import structlog

from penstock.base.backoff import Backoff
from penstock.base.clock import MonotonicClock
from penstock.controller.api import messages as m
from penstock.controller.api.client import LOCKED_OUT_S, ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.lease import Lease
from penstock.controller.api.tls import TlsFiles
from penstock.controller.api.transport import (
    END_OF_STREAM,
    Channel,
    RpcFailed,
    StatusCode,
    StreamCall,
)
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ControllerEpoch, MetadataOffset
from penstock.stream.ports import BrokerIncarnation

_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(m.MetadataBatch)

HEARTBEAT_INTERVAL_S = 0.5
SILENCE_S = 2.0
"""Maximum silence of a stream, which is four heartbeats. After that, the follower tries another
controller.
"""
FIRST_SILENCE_S_MAX = 8.0
"""Maximum wait for the first message of a stream. After two attempts without a message, the wait
doubles from SILENCE_S up to this value, so that a broker can connect to a controller that is slow
to start a stream.
"""
PAUSE_ENDED_S = 0.05
SILENT_STREAMS_MAX = 2
"""Maximum number of silent streams that stay open: the first stream, which has delivered messages,
and the last one, which carries the session if its first message has arrived.
"""

BACKOFF_FIRST_MS = 20
BACKOFF_MAX_MS = 250
"""Maximum backoff. It is shorter than the grace period of a broken stream, which is 0.3 s by
default.
"""

ALARM_INTERVAL_S = 60.0
"""Minimum interval between two reports that a controller has older metadata than before."""

STOPPING_DETAIL = "stopping"
"""Detail of the error with which a stopping controller ends its streams, after it has stopped
fencing.
"""

Subscriber = Callable[[MetadataDelta, MetadataImage], None]


REPLACED_TEXT = "was replaced by a newer start"
"""Part of the error detail for an incarnation whose node has registered again."""

REFUSED_TEXT = "refused"
"""Part of gRPC's error detail if the address refuses connections, for which gRPC has no status
code.
"""


class _StreamEnd(Enum):
    """The reason why a controller's stream ended."""

    BROKEN = 0
    """The connection broke, so the controller may fence after the grace period."""
    FENCED = 1
    """The controller has fenced or replaced this incarnation."""
    NOT_LEADING = 2
    """The controller does not lead, so it does not fence. The detail is the leader's address."""
    STOPPING = 3
    """The controller is stopping and has stopped fencing."""
    REFUSED = 4
    """The address refuses connections, so the process has most likely ended."""
    SILENT = 5
    """No message has arrived for too long. The stream stays open, so the controller fences only
    after the timeout.
    """
    MOVED = 6
    """Another stream of this incarnation now carries the session."""

    @property
    def stops_fencing(self) -> bool:
        return self in {_StreamEnd.NOT_LEADING, _StreamEnd.STOPPING}


class FollowerStopped(ControllerError):
    """Raised when the follower has stopped or failed, so that the image no longer changes."""


class FollowerFenced(FollowerStopped):
    """Raised when the controller has rejected this incarnation, because it was fenced or replaced
    by a newer start.
    """


class _OlderSnapshot(ControllerError):
    """Raised when a controller sends a snapshot that ends before the applied offset."""

    def __init__(
        self, offset: MetadataOffset, applied: MetadataOffset, *, is_deposed: bool
    ) -> None:
        super().__init__(
            f"the snapshot at offset {offset} was rejected: {applied} is already applied"
        )
        self.is_deposed = is_deposed
        """Whether the sender leads an epoch that has already ended, and thus may lag for a
        moment.
        """


class _Stream:
    """A stream from one controller, on a connection of its own."""

    def __init__(self, address: str, tls: TlsFiles | None, *, attempt: int, now: float) -> None:
        self.address = address
        self.attempt = attempt
        """Number of this stream among the follower's streams. The controller rejects the first
        message of a stream after it has received one of a later stream.
        """
        self._channel = Channel(address, tls)
        self.call: StreamCall = self._channel.follow()
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks that use the call. `close` cancels them."""
        self.message_count = 0
        self.heard_at = now
        """The time when the last message arrived or, before that, when the stream was opened."""
        self.is_silent = False

    async def close(self) -> None:
        self.call.cancel()
        for task in self.tasks:
            task.cancel()
        # `await task` would not distinguish the cancellation of this task from that of the awaited
        # one.
        if self.tasks:
            await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled():
                task.exception()
        await self._channel.close()


class MetadataFollower:
    """Follows the metadata for one process.

    The image contains only committed records, each once and in order. Subscribers are called with
    the changes of every batch, and the image does not change while they run. `can_write` returns
    False before the controller can have assigned this broker's partitions to others
    (`controller.api.lease` explains why). A snapshot that ends before the applied offset is
    rejected; a history started by `penstock controller recover` has far higher offsets. A
    subscriber that raises stops the follower. `failed` then contains the exception, and the process
    should exit.

    node: the incarnation that owns the session, or None for an observer without a session.
    """

    def __init__(
        self,
        client: ControllerClient,
        node: BrokerIncarnation | None = None,
        *,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        now: MonotonicClock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._node = node
        self._interval_s = heartbeat_interval_s
        self._now = now or asyncio.get_running_loop().time
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._image = MetadataImage()
        self._committed = MetadataOffset(0)
        self._heard_at = self._now()
        self._loading: MetadataImage | None = None
        """The part of a snapshot that was received so far."""
        self._lease = Lease()
        self._attempts = count(1)
        self._silent: list[_Stream] = []
        """Streams that have fallen silent. They stay open until another stream delivers messages,
        because closing one would let its controller fence after the short grace period, although
        either process may merely have been slow.
        """
        self._silent_attempt_count = 0
        """Number of streams that have fallen silent before their first message, since the last
        message on any stream.
        """
        self._closing: set[asyncio.Task[None]] = set()
        self.replaced = False
        """Whether another process has registered this node again."""
        self._session_at = ""
        """Address of the controller that acknowledged the last heartbeats. Only this controller can
        fence this broker for a broken stream.
        """
        self._subscribers: list[Subscriber] = []
        self._session_listeners: list[Callable[[bool], None]] = []
        self._session_reported = (False, False)
        """(has session, fenced), as last reported to the listeners."""
        self._waiters: list[tuple[MetadataOffset, int, asyncio.Future[None]]] = []
        self._waiter_numbers = count()
        self._epoch = ControllerEpoch(0)
        """The newest epoch of a controller whose batch was applied."""
        self._regression_logged_at = -ALARM_INTERVAL_S
        self.regression = ""
        """The reason why the controllers' metadata is rejected, or empty if it is accepted."""
        self._backup_offset = MetadataOffset(0)
        self._backup_moved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._caught_up = asyncio.Event()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completes when the follower ends: with a result after `stop`, or with an exception after
        a bug.
        """

    @property
    def image(self) -> MetadataImage:
        """The current image. Do not store it, because a snapshot replaces it."""
        return self._image

    @property
    def offset(self) -> MetadataOffset:
        return self._image.end_offset

    @property
    def behind_count(self) -> int:
        """Number of records that the controller has committed, according to its last message, but
        that are not applied here yet.
        """
        return max(0, self._committed - self._image.end_offset)

    @property
    def silent_s(self) -> float:
        """Seconds since the last message. The controller sends at least one per heartbeat
        interval.
        """
        return max(0.0, self._now() - self._heard_at)

    @property
    def fenced(self) -> bool:
        """Whether the controller has fenced or replaced this incarnation, which must then register
        again.
        """
        return self._lease.ended

    def can_write(self) -> bool:
        """Return whether the session is alive, as far as this process can tell. This takes one
        clock read.
        """
        return self._lease.is_alive(self._now())

    def leads_alone(self) -> bool:
        """Return whether no other broker can have become the leader of this broker's partitions.
        This takes one clock read.
        """
        return self._now() < self._lease.alone_until

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` after every batch, and immediately with everything if the image is not
        empty.
        """
        self._subscribers.append(subscriber)
        if self._image.end_offset > 0:
            subscriber(MetadataDelta(everything=True), self._image)

    def on_session(self, listener: Callable[[bool], None]) -> None:
        """Call `listener` with False when the session is lost, with True when it is gained, and
        with False again once `fenced` is set.
        """
        self._session_listeners.append(listener)

    async def start(self, timeout_s: float = 30.0) -> None:
        """Connect, and catch up with the currently committed records. Raises TimeoutError,
        FollowerFenced.
        """
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(), name="metadata-follower")]
        if self._node is not None:
            self._tasks.append(loop.create_task(self._watch_session(), name="metadata-session"))
        caught_up = loop.create_task(self._caught_up.wait())
        try:
            await asyncio.wait(
                (caught_up, self.failed), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            caught_up.cancel()
        if self.failed.done():
            self.failed.result()
            raise FollowerFenced(
                "the controller refused this incarnation: it was fenced or replaced"
            )
        if not self._caught_up.is_set():
            raise TimeoutError(
                f"no controller responded within {timeout_s:.1f} s (last tried:"
                f" {self._client.address})"
                + (f"; {self._client.problem}" if self._client.problem else "")
            )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        if not self.failed.done():
            self.failed.set_result(None)
        self._release_waiters()

    async def reached(self, offset: MetadataOffset, deadline: float) -> None:
        """Wait until the image contains everything below `offset`. deadline: event loop time.

        Raises TimeoutError, FollowerStopped.
        """
        if self._image.end_offset >= offset:
            return
        if self.failed.done():
            raise FollowerStopped("the metadata follower has stopped")
        loop = asyncio.get_running_loop()
        reached = loop.create_future()
        heapq.heappush(self._waiters, (offset, next(self._waiter_numbers), reached))
        try:
            async with asyncio.timeout_at(deadline):
                await reached
        except TimeoutError:
            raise TimeoutError(
                f"the metadata image has reached {self._image.end_offset}, but not {offset} in time"
            ) from None

    async def backed_up(self, offset: MetadataOffset) -> None:
        """Wait, without a timeout, until the backup in the store contains all metadata below
        `offset`. Raises FollowerStopped.
        """
        while self._backup_offset < offset:
            if self.failed.done():
                raise FollowerStopped("the metadata follower has stopped")
            await self._backup_moved.wait()

    async def _run(self) -> None:
        backoff = Backoff(BACKOFF_FIRST_MS, BACKOFF_MAX_MS, self._rng)
        try:
            while not self._lease.ended:
                before = self._image.end_offset
                heard = await self._follow_once()
                if heard or self._image.end_offset > before:
                    backoff = Backoff(BACKOFF_FIRST_MS, BACKOFF_MAX_MS, self._rng)
                await asyncio.sleep(
                    LOCKED_OUT_S if self._client.is_locked_out else backoff.next_s()
                )
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            _log.exception("metadata_follower_failed", offset=self._image.end_offset)
            self.failed.set_exception(error)
            self._lease.end()
            if not isinstance(error, Exception):
                raise
        else:
            self.failed.set_result(None)
        finally:
            self._abandon_silent()
            if self._closing:
                await asyncio.wait(self._closing)
        self.report_session()
        self._release_waiters()

    async def _follow_once(self) -> bool:
        """Follow one controller until the stream ends. Return True if the stream has delivered a
        message.
        """
        stream = _Stream(
            self._client.address,
            self._client.tls,
            attempt=next(self._attempts),
            now=self._now(),
        )
        self._lease.stream_began()
        self._loading = None
        stream.tasks.add(
            asyncio.get_running_loop().create_task(
                self._send_heartbeats(stream), name=f"heartbeats-{self._node}"
            )
        )
        reading = asyncio.get_running_loop().create_task(
            self._receive_all(stream), name=f"metadata-{self._node}"
        )
        stream.tasks.add(reading)
        why: BaseException | None = None
        try:
            await self._wait_for_end(stream, reading)
        except _OlderSnapshot as error:
            why = error
            self._report_older_snapshot(error, stream.address)
        except TimeoutError as error:
            why = error
            stream.is_silent = self._node is not None
            self._silent_attempt_count += stream.message_count == 0
        except RpcFailed as error:
            why = error
        finally:
            if stream.is_silent:
                self._keep_silent(stream, reading)
            else:
                await stream.close()
        heard = stream.message_count > 0
        self._on_stream_end(stream.address, why, heard=heard)
        return heard

    async def _wait_for_end(self, stream: _Stream, reading: "asyncio.Task[None]") -> None:
        """Wait until the stream ends. Raises TimeoutError if no message arrives for SILENCE_S, or
        longer before the first one, and the errors of `_receive_all`.

        The read of a silent stream is not cancelled, because gRPC would end the stream.
        """
        while not reading.done():
            count, quiet_s = stream.message_count, self._now() - stream.heard_at
            limit_s = SILENCE_S if count else self._first_silence_s()
            await asyncio.wait((reading,), timeout=max(limit_s - quiet_s, 0.0))
            if stream.message_count == count:
                # After this process was paused, the timer fires before the messages that arrived
                # during the pause are read. One of them may report that another incarnation has
                # replaced this one.
                await asyncio.wait((reading,), timeout=PAUSE_ENDED_S)
            if stream.message_count == count and not reading.done():
                raise TimeoutError(f"no message for {limit_s} s")
        reading.result()

    def _first_silence_s(self) -> float:
        doublings = min(max(self._silent_attempt_count - 1, 0), 10)
        return min(SILENCE_S * (1 << doublings), FIRST_SILENCE_S_MAX)

    async def _receive_all(self, stream: _Stream) -> None:
        """Apply the messages of a stream until it ends. The messages of a silent stream are
        skipped, because the next stream may have delivered the same records; only its end matters.
        Raises RpcFailed, _OlderSnapshot.
        """
        while (data := await stream.call.read()) is not END_OF_STREAM:
            if stream.is_silent:
                continue
            stream.message_count, stream.heard_at = stream.message_count + 1, self._now()
            if stream.message_count == 1:
                self._silent_attempt_count = 0
                self._client.worked()
                self._abandon_silent()
            self._receive(_decoder.decode(cast("bytes", data)), stream.address)

    def _on_stream_end(self, address: str, why: BaseException | None, *, heard: bool) -> None:
        end, detail = _stream_end(why)
        if isinstance(why, RpcFailed):
            self._client.failed(address, why)
        self._shorten_lease(address, end, detail)
        if self._lease.ended:
            return
        tries_same_controller = (
            end in {_StreamEnd.BROKEN, _StreamEnd.MOVED}
            and heard
            and isinstance(why, RpcFailed)
            and address == self._session_at
        )
        if not tries_same_controller:
            self._client.redirect(detail if end is _StreamEnd.NOT_LEADING else "")
        if heard:
            _log.info(
                "metadata_stream_broken",
                controller=address,
                detail=detail,
                offset=self._image.end_offset,
            )

    def _shorten_lease(self, address: str, end: _StreamEnd, detail: str) -> None:
        """Shorten or end the lease, as required after the end of a stream from this controller."""
        if end is _StreamEnd.FENCED:
            _log.warning("session_rejected", node=self._node, detail=detail)
            self.replaced = self.replaced or REPLACED_TEXT in detail
            self._lease.end()
            self.report_session()
        elif self._session_at not in {"", address}:
            return
        elif end is _StreamEnd.SILENT or (self._is_session_open() and not end.stops_fencing):
            # This also applies if reconnecting fails, because the controller may not have detected
            # that the stream broke.
            self._lease.stream_fell_silent(self._now())
        else:
            self._lease.stream_broke(
                self._now(),
                nobody_fences=end.stops_fencing,
                fence_unlikely=end is _StreamEnd.REFUSED,
            )

    def _is_session_open(self) -> bool:
        """Return whether the stream that carried the session is silent but has not ended."""
        return any(
            stream.message_count and stream.address == self._session_at for stream in self._silent
        )

    def _keep_silent(self, stream: _Stream, reading: "asyncio.Task[None]") -> None:
        self._silent.append(stream)
        reading.add_done_callback(partial(self._on_silent_end, stream))
        if len(self._silent) > SILENT_STREAMS_MAX:
            self._close_soon(self._silent.pop(1))

    def _on_silent_end(self, stream: _Stream, reading: "asyncio.Task[None]") -> None:
        """Handle the end of a silent stream while others are tried. It may indicate that this
        incarnation was fenced, or replaced by another process.
        """
        if stream not in self._silent:
            return  # this process has closed the stream
        self._silent.remove(stream)
        self._close_soon(stream)
        if not reading.cancelled():
            end, detail = _stream_end(reading.exception())
            # If the session has moved to a later stream, only the end of that one matters.
            if end is not _StreamEnd.MOVED:
                self._shorten_lease(stream.address, end, detail)

    def _abandon_silent(self) -> None:
        while self._silent:
            self._close_soon(self._silent.pop())

    def _close_soon(self, stream: _Stream) -> None:
        """Close a stream without waiting, because the caller already reads another one."""
        task = asyncio.get_running_loop().create_task(stream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _report_older_snapshot(self, error: _OlderSnapshot, address: str) -> None:
        if error.is_deposed:
            return
        self.regression = (
            f"the controller at {address} serves older metadata than this node has applied: {error}"
        )
        if self._now() - self._regression_logged_at >= ALARM_INTERVAL_S:
            self._regression_logged_at = self._now()
            _log.error(
                "metadata_regressed",
                controller=address,
                detail=str(error),
                next=(
                    "committed metadata is missing; stop all controllers. See 'A controller's "
                    "data directory' in docs/how-to/alerts.md"
                ),
            )

    async def _send_heartbeats(self, stream: _Stream) -> None:
        node = self._node
        for heartbeat in count(1):
            if stream.is_silent:
                break
            request = m.FollowRequest(
                from_offset=self._image.end_offset,
                applied_offset=self._image.end_offset,
                attempt=stream.attempt,
                heartbeat=heartbeat,
            )
            if node is not None:
                request = msgspec.structs.replace(
                    request, node_id=node.node_id, node_epoch=node.node_epoch
                )
            self._lease.sent(heartbeat, self._now())
            await stream.call.write(_encode(request))
            await asyncio.sleep(min(self._interval_s, self._lease.heartbeat_s_max))

    def _receive(self, batch: m.MetadataBatch, address: str) -> None:
        """Apply one message of a stream. Raises _OlderSnapshot."""
        if batch.snapshot and batch.base_offset < self._image.end_offset:
            raise _OlderSnapshot(
                batch.base_offset,
                self._image.end_offset,
                is_deposed=batch.controller_epoch < self._epoch,
            )
        self._client.learn(batch.controllers)
        self._committed, self._heard_at = batch.end_offset, self._now()
        if batch.session_timeout_ms:
            self._lease.set_limits(batch.session_timeout_ms, batch.session_grace_ms)
        if batch.reset:
            self._loading = MetadataImage()
        if batch.snapshot:
            assert self._loading is not None, "a snapshot begins with reset"
            self._loading.load(map(decode_record, batch.records))
        else:
            self._apply(batch)
        if batch.backup_offset > self._backup_offset:
            self._backup_offset = batch.backup_offset
            self._wake_backup_waiters()
        if batch.heard and self._node is not None:
            self._lease.acknowledged(batch.heard)
            self._session_at = address
        self.report_session()

    def _apply(self, batch: m.MetadataBatch) -> None:
        """Apply a batch of the log. The first batch after a snapshot completes the snapshot, which
        becomes the image.
        """
        delta: MetadataDelta | None = None
        if self._loading is not None:
            self._image, self._loading = self._loading, None
            self._image.loaded(batch.base_offset)
            delta = MetadataDelta(everything=True)
        image = self._image
        if batch.base_offset != image.end_offset:
            raise ControllerError(
                f"the controller sent records from {batch.base_offset}, the image ends at"
                f" {image.end_offset}"
            )
        records = [decode_record(raw) for raw in batch.records]
        image.apply_all(records)
        self._epoch = max(self._epoch, batch.controller_epoch)
        self.regression = ""
        if records or delta is not None:
            delta = delta or MetadataDelta.of(records)
            for subscriber in self._subscribers:
                subscriber(delta, image)
            self._release_reached()
        if not batch.records:
            self._caught_up.set()

    def _release_reached(self) -> None:
        end = self._image.end_offset
        while self._waiters and self._waiters[0][0] <= end:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)

    def _release_waiters(self) -> None:
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(FollowerStopped("the metadata follower has stopped"))
        self._waiters.clear()
        self._wake_backup_waiters()

    def _wake_backup_waiters(self) -> None:
        waiters, self._backup_moved = self._backup_moved, asyncio.Event()
        waiters.set()

    async def _watch_session(self) -> None:
        """Report the end of the lease in time: sleep until the lease may end, at most for a fifth
        of a heartbeat.
        """
        while not self._lease.ended:
            left_s = self._lease.until - self._now()
            await asyncio.sleep(min(self._interval_s / 5, max(left_s, 0.01)))
            self.report_session()

    def report_session(self) -> None:
        """Notify the listeners immediately if the session was lost or gained. This takes one clock
        read.
        """
        has_session = self.can_write()
        if (has_session, self.fenced) == self._session_reported:
            return
        self._session_reported = (has_session, self.fenced)
        _log.info(
            "session_gained" if has_session else "session_lost", node=self._node, fenced=self.fenced
        )
        for listener in self._session_listeners:
            listener(has_session)


def _stream_end(why: BaseException | None) -> tuple[_StreamEnd, str]:
    """Classify the end of a stream by its gRPC status and detail. Return the reason and the detail.

    why: the error that ended the stream, or None if the controller closed it without an error.
    """
    if isinstance(why, TimeoutError):
        return _StreamEnd.SILENT, str(why)
    if not isinstance(why, RpcFailed):
        return _StreamEnd.BROKEN, str(why or "end of stream")
    code, detail = why.code(), why.details() or ""
    if code is StatusCode.PERMISSION_DENIED:
        return _StreamEnd.FENCED, detail
    if code is StatusCode.FAILED_PRECONDITION:
        return _StreamEnd.NOT_LEADING, detail
    if code is StatusCode.ABORTED:
        return _StreamEnd.MOVED, detail
    if detail == STOPPING_DETAIL:
        return _StreamEnd.STOPPING, detail
    if code is StatusCode.UNAVAILABLE and REFUSED_TEXT in detail:
        return _StreamEnd.REFUSED, detail
    return _StreamEnd.BROKEN, detail
