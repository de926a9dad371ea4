"""The single writer: commits requests through the quorum in batches.

There is one proposal at a time, and requests that arrive in the meantime form the next batch.
Batches thus grow with the load, and an idle controller responds after one fdatasync.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import structlog

from penstock.base.clock import WallClock
from penstock.base.histogram import LatencyHistogram
from penstock.base.ids import Millis
from penstock.controller.api.errors import NotLeader, QuorumClosed
from penstock.controller.api.messages import Reply, Status
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.result import Result
from penstock.controller.metadata.codec import encode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ControllerEpoch, MetadataOffset, Record
from penstock.controller.raft.replicated_log import Quorum

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

Work = Callable[[MetadataImage, Millis], Result[Any]]
"""A manager, bound to its request. It reads the image and never changes it."""

Committed = Callable[[Reply[Any]], None]
"""Called with the reply of a request after the commit."""


class Submission(NamedTuple):
    """The arguments of `Runtime.submit` for a request that a client has sent."""

    timeout_s: float | None
    size_bytes: int
    request_id: str
    committed: Committed


@dataclass(slots=True)
class _Pending:
    name: str
    work: Work
    size_bytes: int
    deadline: float
    response: "asyncio.Future[Reply[Any]]"


@dataclass(slots=True)
class RuntimeCounters:
    """Counters for status and metrics, which never decrease."""

    requests: int = 0
    refused_busy: int = 0
    expired: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    commits: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from proposal to commit."""


@dataclass(slots=True)
class _Between:
    look: Callable[[MetadataImage], Any]
    response: "asyncio.Future[Any]" = field(repr=False)


class Runtime:
    """The writer of one active controller. Create it with the image as of the quorum's committed
    end.

    Managers run one after another on the same image. Requests are acknowledged, and their records
    are sent to followers, only after they are committed. Between two batches, the image contains
    only committed records. A request without records is acknowledged only when a majority has
    confirmed that this controller still leads. A proposal contains at most `batch_bytes_max` plus
    one transaction of `transaction_bytes_max`. After a failed proposal, the image may contain
    uncommitted records, so the runtime ends (`failed`), and the image is rebuilt from the log.
    """

    def __init__(
        self, quorum: Quorum, image: MetadataImage, config: ControllerConfig, now_ms: WallClock
    ) -> None:
        assert image.end_offset == quorum.committed_offset, (
            f"image at {image.end_offset}, log at {quorum.committed_offset}"
        )
        self._quorum = quorum
        self._image = image
        self._config = config
        self._now_ms = now_ms
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._queue: deque[_Pending] = deque()
        self._queue_bytes = 0
        self._between: deque[_Between] = deque()
        self._wake = asyncio.Event()
        self._replies: OrderedDict[str, asyncio.Future[Reply[Any]]] = OrderedDict()
        self._epoch = quorum.leadership.epoch
        self._task: asyncio.Task[None] | None = None
        self._observers: list[Callable[[Sequence[Record]], None]] = []
        self.counters = RuntimeCounters()
        self.has_uncommitted = False
        """Whether the image may contain uncommitted records: during a proposal, and after a failed
        one.
        """
        self.failed: asyncio.Future[None] = loop.create_future()
        """Completes when the writer ends: with a result after `stop`, otherwise with the exception
        that ended it.
        """

    @property
    def epoch(self) -> ControllerEpoch:
        """The epoch of the active controller to which this writer belongs."""
        return self._epoch

    @property
    def image(self) -> MetadataImage:
        """The image. Use it only for metrics, because it may contain uncommitted records. Do not
        store or change it.
        """
        return self._image

    @property
    def queued_count(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller-writer")

    async def stop(self) -> None:
        """Stop after the current batch. Waiting requests are rejected."""
        if self._task is not None:
            self._over(QuorumClosed("the controller is stopping"))
            self._wake.set()
            await asyncio.wait((self._task,))

    def observe(self, note: Callable[[Sequence[Record]], None]) -> None:
        """Call `note` with the records of each request before they are committed. Once they are
        committed, `with_committed_image` includes them. `note` must be fast.
        """
        self._observers.append(note)

    async def submit(
        self,
        name: str,
        work: Work,
        *,
        timeout_s: float | None = None,
        size_bytes: int = 0,
        request_id: str = "",
        committed: Committed | None = None,
    ) -> Reply[Any]:
        """Run `work` in its turn, and return the reply after its records are committed.

        request_id: a retry with the same id receives the same reply, without repeating the work.
        committed: called once with the reply after the commit, even if this call has already ended.
        Raises NotLeader, QuorumClosed, TimeoutError (the outcome is unknown). If the queue is full,
        the reply is CONTROLLER_BUSY.
        """
        known = self._cached_response(request_id)
        limit_s = self._config.request_timeout_ms / 1_000
        wait_s = limit_s if timeout_s is None else min(timeout_s, limit_s)
        response = known or self._enqueue(name, work, size_bytes, wait_s, request_id)
        if isinstance(response, Reply):
            return response
        if known is None and committed is not None:
            response.add_done_callback(partial(_pass_on, committed))
        async with asyncio.timeout(wait_s):
            return await asyncio.shield(response)

    async def with_committed_image(self, look: Callable[[MetadataImage], _T]) -> _T:
        """Call `look` between two batches, when all records in the image are committed. `look` must
        be fast, and must not keep references to the image.
        """
        self._check_running()
        waiting = _Between(look, asyncio.get_running_loop().create_future())
        self._between.append(waiting)
        self._wake.set()
        found: _T = await waiting.response
        return found

    def _cached_response(self, request_id: str) -> "asyncio.Future[Reply[Any]] | None":
        """Return the reply that an earlier attempt has received or is waiting for. If the earlier
        attempt expired in the queue, it did not run, so the request runs now.
        """
        known = self._replies.get(request_id) if request_id else None
        return None if known is None or (known.done() and known.exception() is not None) else known

    def _check_running(self) -> None:
        leadership = self._quorum.leadership
        if self.failed.done():
            raise QuorumClosed("the controller is stopping")
        if not leadership.active or leadership.epoch != self._epoch:
            raise NotLeader(leadership.address)

    def _enqueue(
        self, name: str, work: Work, size_bytes: int, wait_s: float, request_id: str
    ) -> "asyncio.Future[Reply[Any]] | Reply[Any]":
        self._check_running()
        config = self._config
        if (
            len(self._queue) >= config.queue_count_max
            or self._queue_bytes + size_bytes > config.queue_bytes_max
        ):
            self.counters.refused_busy += 1
            detail = (
                f"{len(self._queue)} requests ({self._queue_bytes} bytes) are waiting; try again"
                " later"
            )
            return Reply(status=Status.CONTROLLER_BUSY, detail=detail, controller_epoch=self._epoch)
        pending = _Pending(
            name, work, size_bytes, self._now() + wait_s, asyncio.get_running_loop().create_future()
        )
        pending.response.add_done_callback(_retrieve)
        self._queue.append(pending)
        self._queue_bytes += size_bytes
        if request_id:
            self._replies[request_id] = pending.response
            if len(self._replies) > config.reply_cache_count_max:
                self._replies.popitem(last=False)
        self._wake.set()
        return pending.response

    async def _run(self) -> None:
        try:
            while not self.failed.done():
                await self._wake.wait()
                self._wake.clear()
                while (self._queue or self._between) and not self.failed.done():
                    self._look_between()
                    if self._queue:
                        await self._write_batch(self._take_batch())
        except NotLeader as error:
            self._over(error)
        except BaseException as error:
            _log.critical(
                "controller_writer_failed", error=str(error), error_type=type(error).__name__
            )
            self._over(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._refuse_waiting()

    def _over(self, error: BaseException | None) -> None:
        if self.failed.done():
            return
        if isinstance(error, QuorumClosed):
            self.failed.set_result(None)
        elif error is not None:
            self.failed.set_exception(error)
            self.failed.exception()

    def _look_between(self) -> None:
        while self._between:
            waiting = self._between.popleft()
            if waiting.response.done():
                continue
            try:
                waiting.response.set_result(waiting.look(self._image))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller, who gets it
                waiting.response.set_exception(error)

    def _take_batch(self) -> list[_Pending]:
        batch: list[_Pending] = []
        now = self._now()
        size_bytes = 0
        while (
            self._queue
            and len(batch) < self._config.batch_count_max
            and size_bytes < self._config.batch_bytes_max
        ):
            pending = self._queue.popleft()
            size_bytes += pending.size_bytes
            self._queue_bytes -= pending.size_bytes
            if pending.deadline <= now:
                self.counters.expired += 1
                pending.response.set_exception(
                    TimeoutError(f"{pending.name} waited too long in the controller's queue")
                )
                continue
            batch.append(pending)
        return batch

    async def _write_batch(self, batch: list[_Pending]) -> None:
        """Run the managers, propose all records at once, then respond. The records of one request
        are in one proposal, which makes them atomic.
        """
        replies: list[Reply[Any]] = []
        encoded: list[bytes] = []
        size_bytes = 0
        self.has_uncommitted = True
        try:
            for pending in batch:
                reply, records = self._respond(pending)
                replies.append(reply)
                encoded += records
                size_bytes += sum(map(len, records))
                if size_bytes >= self._config.batch_bytes_max:
                    self._put_back(batch[len(replies) :])
                    del batch[len(replies) :]
                    break
            self.counters.requests += len(batch)
            if encoded:
                proposed_at = self._now()
                await self._quorum.propose(self._epoch, encoded)
                self.has_uncommitted = False
                self.counters.commits.observe((self._now() - proposed_at) * 1_000)
                self.counters.batches += 1
                self.counters.records += len(encoded)
                self.counters.bytes += size_bytes
            else:
                self.has_uncommitted = False
                await self._quorum.confirm(self._epoch)
        except BaseException as error:
            lost: Exception = QuorumClosed(
                "the controller stopped before the request was committed; the outcome is unknown"
            )
            if isinstance(error, NotLeader):
                lost = error
            for pending in batch:
                pending.response.set_exception(lost)
            raise
        for pending, reply in zip(batch, replies, strict=True):
            pending.response.set_result(reply)

    def _put_back(self, rest: list[_Pending]) -> None:
        """Put the requests that do not fit into the batch at the front of the queue."""
        self._queue.extendleft(reversed(rest))
        self._queue_bytes += sum(pending.size_bytes for pending in rest)

    def _respond(self, pending: _Pending) -> tuple[Reply[Any], list[bytes]]:
        """Run one manager and apply its records, so that they are visible to the next one. A
        manager that raises has no effect.

        The reply contains the end of the image even without new records, because a retry must wait
        for the changes of the first attempt.
        """
        try:
            result = pending.work(self._image, self._now_ms())
            encoded = [encode_record(record) for record in result.records]
        except Exception as error:  # noqa: BLE001 - a defect of one manager is the end of one request, not of the controller
            _log.exception("request_failed", request=pending.name)
            detail = f"{pending.name} failed inside the controller: {type(error).__name__}: {error}"
            return (
                Reply(status=Status.INVALID_REQUEST, detail=detail, controller_epoch=self._epoch),
                [],
            )
        size_bytes = sum(map(len, encoded))
        if size_bytes > self._config.transaction_bytes_max:
            detail = (
                f"{pending.name} results in {size_bytes} bytes of metadata records,"
                f" {self._config.transaction_bytes_max} are allowed: split it"
            )
            _log.warning("transaction_too_large", request=pending.name, size_bytes=size_bytes)
            return (
                Reply(status=Status.INVALID_REQUEST, detail=detail, controller_epoch=self._epoch),
                [],
            )
        self._image.apply_all(result.records)
        if result.records:
            for note in self._observers:
                note(result.records)
        reply: Reply[Any] = Reply(
            status=result.status,
            detail=result.detail,
            offset=MetadataOffset(self._image.end_offset),
            controller_epoch=self._epoch,
            value=result.value,
        )
        return reply, encoded

    def _refuse_waiting(self) -> None:
        error = self.failed.exception() if self.failed.done() else None
        stopping: Exception = (
            error if isinstance(error, NotLeader) else QuorumClosed("the controller is stopping")
        )
        for pending in self._queue:
            pending.response.set_exception(stopping)
        for waiting in self._between:
            if not waiting.response.done():
                waiting.response.set_exception(stopping)
        self._queue.clear()
        self._between.clear()


def _pass_on(committed: Committed, response: "asyncio.Future[Reply[Any]]") -> None:
    if not response.cancelled() and response.exception() is None:
        committed(response.result())


def _retrieve(response: "asyncio.Future[Reply[Any]]") -> None:
    """Retrieve the exception, so that asyncio does not log it if the caller is no longer
    waiting.
    """
    if not response.cancelled():
        response.exception()
