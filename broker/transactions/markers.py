"""Send transaction markers to partition leaders, with retries until all partitions have them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog

from penstock.base.ids import NodeId
from penstock.base.shared_backoff import SharedBackoff
from penstock.broker.transactions.model import TopicPartition
from penstock.protocol.batch.control import Marker
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

MARKERS_PER_REQUEST_MAX: Final = 2_000
REQUEST_TIMEOUT_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 2.0
_FENCED: Final = int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
_SETTLED: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Error codes after which a partition needs no marker. INVALID_PRODUCER_EPOCH means that the
partition contains a later epoch of the producer, so no transaction with this epoch is open.
"""


@dataclass(slots=True, eq=False)
class _Job:
    coordinator_partition: int
    marker: Marker
    version: int
    done: Callable[[], None]
    remaining: set[TopicPartition]
    is_done: bool = False


@dataclass(slots=True, eq=False)
class Target:
    """One partition that needs the marker."""

    job: _Job
    partition: TopicPartition
    attempts_count: int = 0

    @property
    def marker(self) -> Marker:
        return self.job.marker

    @property
    def version(self) -> int:
        """Return the transaction version, which determines how the leader checks the marker."""
        return self.job.version


@dataclass(slots=True)
class _Queue:
    """The markers that are queued for one broker. Only one request is in flight, so that
    transactions share requests under load.
    """

    waiting: list[Target] = field(default_factory=list[Target])
    sender: asyncio.Task[None] | None = None


LeaderOf: TypeAlias = Callable[[TopicPartition], NodeId | None]
"""Returns the leader, or None if there is currently none. Raises KeyError if the partition does not
(or no longer) exist.
"""
Write: TypeAlias = Callable[[NodeId, Sequence[Target]], Awaitable[Mapping[Target, int]]]
"""Sends one request to one broker and returns error codes. After any exception, the whole request
is retried.
"""


class MarkerSender:
    def __init__(self, leader_of: LeaderOf, write: Write) -> None:
        self._leader_of = leader_of
        self._write = write
        self._jobs: dict[int, set[_Job]] = {}
        self._queues: dict[NodeId, _Queue] = {}
        self._retries = SharedBackoff[Target](_RETRY_FIRST_S, _RETRY_MAX_S, self._route)

    def send(
        self,
        coordinator_partition: int,
        marker: Marker,
        partitions: Iterable[TopicPartition],
        done: Callable[[], None],
        version: int = 0,
    ) -> None:
        """Send the marker. `done` is called once all partitions have the marker or no longer exist,
        unless this broker loses the coordinator's partition first (`forget`).

        Resending a marker is harmless, even if a copy arrives late, because the leader checks
        epochs and serials, and ends a transaction only once.
        """
        job = _Job(coordinator_partition, marker, version, done, set(partitions))
        self._jobs.setdefault(coordinator_partition, set()).add(job)
        if not job.remaining:
            self._finish(job)
        self._route([Target(job, partition) for partition in sorted(job.remaining)])

    def forget(self, coordinator_partition: int) -> None:
        for job in self._jobs.pop(coordinator_partition, set()):
            job.is_done = True

    def close(self) -> None:
        for partition in list(self._jobs):
            self.forget(partition)
        self._retries.cancel()
        for queue in self._queues.values():
            if queue.sender is not None:
                queue.sender.cancel()

    # --- routing ----------------------------------------------------------------------------------

    def _route(self, targets: Iterable[Target]) -> None:
        leaderless: list[Target] = []
        for target in targets:
            if target.job.is_done:
                continue
            try:
                leader = self._leader_of(target.partition)
            except KeyError:
                self._settle(target)
                continue
            if leader is None:
                leaderless.append(target)
                continue
            queue = self._queues.setdefault(leader, _Queue())
            queue.waiting.append(target)
            if queue.sender is None:
                queue.sender = asyncio.get_running_loop().create_task(
                    self._send_queue(leader, queue)
                )
        self._retry(leaderless)

    async def _send_queue(self, node_id: NodeId, queue: _Queue) -> None:
        try:
            while queue.waiting:
                batch, queue.waiting = (
                    queue.waiting[:MARKERS_PER_REQUEST_MAX],
                    queue.waiting[MARKERS_PER_REQUEST_MAX:],
                )
                batch = [target for target in batch if not target.job.is_done]
                if batch:
                    await self._request(node_id, batch)
        finally:
            queue.sender = None

    async def _request(self, node_id: NodeId, batch: Sequence[Target]) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                results = await self._write(node_id, batch)
        except Exception as error:  # noqa: BLE001 - whatever failed, the final outcome has to arrive: log, wait, retry
            log.info(
                "marker_write_failed",
                node_id=node_id,
                partitions=len(batch),
                error=str(error),
                kind=type(error).__name__,
            )
            self._retry(batch)
            return
        again: list[Target] = []
        for target in batch:
            code = results.get(target, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code in _SETTLED:
                self._settle(target)
            elif code == _FENCED:
                # The next coordinator will finish the transaction. This broker is about to lose its
                # partition.
                self._end(target.job)
            else:
                again.append(target)
        if again:
            codes = sorted(
                {results.get(target, ErrorCode.UNKNOWN_SERVER_ERROR) for target in again}
            )
            log.info("markers_rejected", node_id=node_id, partitions=len(again), codes=codes)
            self._retry(again)

    def _retry(self, targets: Sequence[Target]) -> None:
        for target in targets:
            self._retries.add(target, target.attempts_count)
            target.attempts_count += 1

    # --- completion -------------------------------------------------------------------------------

    def _settle(self, target: Target) -> None:
        job = target.job
        job.remaining.discard(target.partition)
        if not job.remaining and not job.is_done:
            self._finish(job)

    def _finish(self, job: _Job) -> None:
        self._end(job)
        job.done()

    def _end(self, job: _Job) -> None:
        job.is_done = True
        jobs = self._jobs.get(job.coordinator_partition)
        if jobs is not None:
            jobs.discard(job)
