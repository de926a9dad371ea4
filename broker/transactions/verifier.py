"""Ask coordinators whether a transaction includes a partition that this broker leads, or request
that they add it (KIP-890).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog

from penstock.base.ids import NodeId
from penstock.broker.transactions.model import Membership, TopicPartition
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

QUESTIONS_PER_REQUEST_MAX: Final = 2_000
REQUEST_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.02
RESPONSE_MAX_S: Final = 1.0
"""How long a verification is retried. Ending the previous transaction takes only one or two
PUTs.
"""
_ASKED_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(slots=True, eq=False)
class _Question:
    membership: Membership
    partition: TopicPartition
    done: Callable[[ErrorCode], None]
    deadline: float


@dataclass(slots=True)
class _Queue:
    """The verifications that are queued for one broker. Only one request is in flight, so that
    transactions share requests under load.
    """

    waiting: list[_Question] = field(default_factory=list[_Question])
    sender: asyncio.Task[None] | None = None


CoordinatorOf: TypeAlias = Callable[[str], NodeId | None]
"""Returns the broker that coordinates this transactional id, or None if it is currently unknown."""
Codes: TypeAlias = Mapping[tuple[str, TopicPartition], ErrorCode]
"""Error codes by transactional id and partition."""
Ask: TypeAlias = Callable[[NodeId, Mapping[Membership, Sequence[TopicPartition]]], Awaitable[Codes]]
"""Sends one request to one broker. It contains each transactional id at most once."""


class TransactionVerifier:
    def __init__(self, coordinator_of: CoordinatorOf, send_request: Ask) -> None:
        self._coordinator_of = coordinator_of
        self._send_request = send_request
        self._queues: dict[NodeId, _Queue] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    def send_request(
        self,
        membership: Membership,
        partition: TopicPartition,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Send a request to the coordinator. `done` is called exactly once, never before this
        method returns, and within RESPONSE_MAX_S plus the duration of one request. The code is NONE
        if the transaction includes the partition.

        If the coordinator is moving, loading, or still ending the previous transaction, the request
        is retried after RETRY_S.
        """
        deadline = asyncio.get_running_loop().time() + RESPONSE_MAX_S
        self._route(_Question(membership, partition, done, deadline))

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for queue in self._queues.values():
            if queue.sender is not None:
                queue.sender.cancel()

    def _route(self, question: _Question) -> None:
        node_id = self._coordinator_of(question.membership.transactional_id)
        if node_id is None:
            # Do not call `done` immediately, because the caller is not ready for it yet.
            self._request_again(question, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        queue = self._queues.setdefault(node_id, _Queue())
        queue.waiting.append(question)
        if queue.sender is None:
            queue.sender = asyncio.get_running_loop().create_task(self._send_queue(node_id, queue))

    async def _send_queue(self, node_id: NodeId, queue: _Queue) -> None:
        try:
            while queue.waiting:
                batch, queue.waiting = _next_request(queue.waiting)
                self._resolve(batch, await self._request(node_id, batch))
        finally:
            queue.sender = None

    async def _request(self, node_id: NodeId, batch: Sequence[_Question]) -> Codes:
        wanted: dict[Membership, list[TopicPartition]] = {}
        for question in batch:
            wanted.setdefault(question.membership, []).append(question.partition)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await self._send_request(node_id, wanted)
        except Exception as error:  # noqa: BLE001 - whatever failed, every question gets a result
            log.info(
                "transaction_verification_failed",
                node_id=node_id,
                questions=len(batch),
                error=f"{type(error).__name__}: {error}",
            )
            return {}

    def _resolve(self, batch: Sequence[_Question], codes: Codes) -> None:
        now = asyncio.get_running_loop().time()
        for question in batch:
            code = codes.get(
                (question.membership.transactional_id, question.partition),
                ErrorCode.NETWORK_EXCEPTION,
            )
            if code in _ASKED_AGAIN and now < question.deadline:
                self._request_again(question, code)
            else:
                question.done(code)

    def _request_again(self, question: _Question, code: ErrorCode) -> None:
        loop = asyncio.get_running_loop()

        def due() -> None:
            self._timers.discard(timer)
            if loop.time() < question.deadline:
                self._route(question)
            else:
                question.done(code)

        timer = loop.call_later(RETRY_S, due)
        self._timers.add(timer)


def _next_request(waiting: Sequence[_Question]) -> tuple[list[_Question], list[_Question]]:
    """Return the verifications for the next request, and those that must wait. Responses identify
    transactions only by transactional id, so a request has one entry for each id.
    """
    batch: list[_Question] = []
    later: list[_Question] = []
    chosen: dict[str, Membership] = {}
    for question in waiting:
        membership = question.membership
        known = chosen.setdefault(membership.transactional_id, membership)
        fits = known == membership and len(batch) < QUESTIONS_PER_REQUEST_MAX
        (batch if fits else later).append(question)
    return batch, later
