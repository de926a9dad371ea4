"""The share coordinator of one broker: runs `ShareStates` and stores them in
`__share_group_state`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

import structlog

from penstock.broker.coordination.compaction import CompactionLimits, Live
from penstock.broker.coordination.log import CoordinatorLog
from penstock.broker.coordination.shards import CoordinatorShards
from penstock.broker.groups.share.state.machine import EncodedRecord, ShareStates, StoredState
from penstock.broker.groups.share.state.model import (
    ANY_EPOCH,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateSummary,
    StateBatch,
)
from penstock.broker.groups.share.state.records import (
    SNAPSHOT,
    MalformedShareRecord,
    decode_share_key,
    encode_share_key,
    encode_share_value,
)
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

STATES_MAX: Final = 500_000
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_T = TypeVar("_T")
_Step: TypeAlias = Callable[[ShareStates], tuple[_T, Sequence[EncodedRecord]]]
"""Returns the response, and the records to write before it is sent."""
_Before: TypeAlias = tuple[StoredState | None, int]
"""The state of a share partition before a step, and the epoch of its deletion."""


class KnownTopics(Protocol):
    """The topics of the cluster, as seen by the share coordinator."""

    def is_gone(self, topic_id: UUID) -> bool:
        """Return True if the topic does not exist and cannot be restored."""
        ...

    def partition_count(self, topic_id: UUID) -> int:
        """Return the partition count, or 0 if the topic does not exist."""
        ...


@dataclass(slots=True, eq=False)
class _Partition:
    """One loaded partition of `__share_group_state`."""

    index: int
    states: ShareStates
    append: "asyncio.Future[ErrorCode] | None" = field(default=None)
    """The outcome of the last append."""


class ShareCoordinator:
    """The share coordinator; implements `ShareStateStore` for the states coordinated by this
    broker, without retries. Call all methods on the event loop.

    A share partition belongs to a partition of `__share_group_state`, whose leader coordinates it.
    A response is sent only after the records that it depends on are durable, including those of
    earlier requests. A response that produces no record is sent only while no other broker can be
    the leader. If an append is rejected, its changes are undone; if it fails later, the partition
    is reloaded.

    updates_max: number of update records between two snapshots of a share partition.
    """

    def __init__(
        self,
        states_log: CoordinatorLog,
        topics: KnownTopics,
        *,
        updates_max: int,
        now_ms: Callable[[], int],
        compaction: CompactionLimits | None = None,
    ) -> None:
        self._log = states_log
        self._topics = topics
        self._updates_max = updates_max
        self._now_ms = now_ms
        self._shards: CoordinatorShards[_Partition] = CoordinatorShards(
            states_log, self._load, lambda _: None, _LiveShareStates, compaction
        )

    # --- leadership -------------------------------------------------------------------------------

    def partition_opened(self, partition: int) -> None:
        self._shards.opened(partition)

    def partition_closed(self, partition: int) -> None:
        self._shards.closed(partition)

    def close(self) -> None:
        self._shards.close()

    def partition_of(self, key: str) -> int | None:
        """Return the partition of `__share_group_state`, or None while the topic does not exist.

        key: see `SharePartitionKey.coordinator_key`.
        """
        return self._shards.partition_of(key)

    async def _load(self, partition: int) -> _Partition:
        state, malformed_count = _Partition(partition, ShareStates(self._updates_max)), 0
        async for batch in self._shards.read(partition):
            for key, value in batch.records:
                try:
                    state.states.replay(key, value)
                except MalformedShareRecord:
                    malformed_count += 1
        # Topics may have been deleted while the partition had no leader. The call must run after
        # this state is registered.
        asyncio.get_running_loop().call_soon(self._drop_deleted, state)
        log.info(
            "share_states_loaded",
            partition=partition,
            states=len(state.states),
            malformed=malformed_count,
        )
        return state

    # --- deleted topics ---------------------------------------------------------------------------

    def topics_changed(self, topic_ids: Iterable[UUID] | None) -> None:
        """Delete the states of permanently deleted topics. With None, any topic may have
        changed.
        """
        if topic_ids is not None and not any(map(self._topics.is_gone, topic_ids)):
            return
        for state in self._shards.loaded():
            self._drop_deleted(state)

    def _drop_deleted(self, state: _Partition) -> None:
        if self._shards.get(state.index) is not state:
            return
        gone = [key for key in state.states if self._topics.is_gone(key.topic_id)]
        for key in gone:
            before = _before(state.states, key)
            self._append(state, key, before, state.states.delete(key))

    # --- the store --------------------------------------------------------------------------------

    def read(self, key: SharePartitionKey, leader_epoch: int) -> "asyncio.Future[ShareState]":
        """See `ShareStateStore`, as for the other methods."""

        def step(states: ShareStates) -> tuple[ShareState, Sequence[EncodedRecord]]:
            found, record = states.read(key, leader_epoch, self._now_ms())
            return found, () if record is None else (record,)

        return self._submit(key, step, may_create=False)

    def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> "asyncio.Future[None]":
        return self._submit(
            key,
            lambda states: (
                None,
                (
                    states.write(
                        key,
                        state_epoch=state_epoch,
                        leader_epoch=leader_epoch,
                        start_offset=start_offset,
                        delivery_complete_count=delivery_complete_count,
                        batches=batches,
                        now_ms=self._now_ms(),
                    ),
                ),
            ),
            may_create=False,
        )

    def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> "asyncio.Future[None]":
        def step(states: ShareStates) -> tuple[None, Sequence[EncodedRecord]]:
            if len(states) >= STATES_MAX and states.get(key) is None:
                raise ShareStateError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"the share coordinator has {STATES_MAX} states, its maximum",
                )
            record = states.initialize(key, state_epoch, start_offset, self._now_ms())
            return None, () if record is None else (record,)

        return self._submit(key, step)

    def delete(
        self, key: SharePartitionKey, *, state_epoch: int = ANY_EPOCH
    ) -> "asyncio.Future[None]":
        return self._submit(key, lambda states: (None, states.delete(key, state_epoch)))

    def summary(
        self, key: SharePartitionKey, leader_epoch: int = -1
    ) -> "asyncio.Future[ShareStateSummary]":
        return self._submit(key, lambda states: (states.summary(key), ()))

    def _submit(
        self, key: SharePartitionKey, step: _Step[_T], *, may_create: bool = True
    ) -> "asyncio.Future[_T]":
        """Run the step. The future completes when the record of the step and all earlier ones are
        durable, or immediately if there is nothing to wait for, because creating a task would cost
        more than rejecting the request.

        may_create: False if the step rejects a missing state.
        """
        name = key.coordinator_key
        state = self._shards.find(name)
        if state is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return asyncio.ensure_future(self._run_when_loaded(name, key, step, may_create))
        return self._run(state, key, step, may_create)

    async def _run_when_loaded(
        self, name: str, key: SharePartitionKey, step: _Step[_T], may_create: bool
    ) -> _T:
        await self._shards.ready(name)
        return await self._run(self._shards.find(name), key, step, may_create)

    def _run(
        self,
        state: _Partition | ErrorCode,
        key: SharePartitionKey,
        step: _Step[_T],
        may_create: bool,
    ) -> "asyncio.Future[_T]":
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        try:
            if key.partition < 0:
                raise ShareStateError(
                    ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number."
                )
            if isinstance(state, ErrorCode):
                raise ShareStateError(state, state.message)
            before = _before(state.states, key)
            if before[0] is not None or may_create:
                self._check_exists(key)
            response, records = self._checked(step, state.states)
        except ShareStateError as error:
            _refuse(future, error)
            return future
        outcome = self._append(state, key, before, records) if records else state.append

        def settle(outcome: "asyncio.Future[ErrorCode] | None") -> None:
            if future.done():  # the caller has cancelled the request
                return
            code = ErrorCode.NONE if outcome is None else outcome.result()
            if code is ErrorCode.NONE and not records and not self._log.leads_alone:
                code = ErrorCode.NOT_COORDINATOR  # no append confirmed leadership
            if code is ErrorCode.NONE:
                future.set_result(response)
            else:
                known = ErrorCode.INVALID_REQUEST if code in _TOO_LARGE else code
                _refuse(future, ShareStateError(known, known.message))

        if outcome is None or outcome.done():
            settle(outcome)
        else:
            outcome.add_done_callback(settle)
        return future

    def _checked(self, step: _Step[_T], states: ShareStates) -> tuple[_T, Sequence[EncodedRecord]]:
        """Run the step. A rejection appends nothing, so WAL fencing does not protect it. It is
        therefore returned only while no other coordinator could decide differently.
        """
        try:
            return step(states)
        except ShareStateError:
            if not self._log.leads_alone:
                code = ErrorCode.NOT_COORDINATOR
                raise ShareStateError(code, code.message) from None
            raise

    def _check_exists(self, key: SharePartitionKey) -> None:
        if key.partition >= self._topics.partition_count(key.topic_id):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise ShareStateError(code, code.message)

    def _append(
        self,
        state: _Partition,
        key: SharePartitionKey,
        before: _Before,
        records: Sequence[EncodedRecord],
    ) -> "asyncio.Future[ErrorCode]":
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        is_accepted = False

        def done(code: ErrorCode) -> None:
            outcome.set_result(code)
            if code is not ErrorCode.NONE and is_accepted:
                self._reload(state)

        last, state.append = state.append, outcome
        self._shards.append(state.index, records, done)
        if outcome.done() and outcome.result() is not ErrorCode.NONE:
            state.states.put_back(key, *before)
            state.append = last
        is_accepted = True
        return outcome

    def _reload(self, state: _Partition) -> None:
        """Reload the partition, because the state in memory has diverged from the log."""
        if self._shards.get(state.index) is state:
            self._shards.opened(state.index)


def _before(states: ShareStates, key: SharePartitionKey) -> _Before:
    return states.get(key), states.deleted_epoch(key)


def _refuse(future: "asyncio.Future[Any]", error: ShareStateError) -> None:
    # Remove the traceback, which refers to local variables.
    future.set_exception(error.with_traceback(None))
    # mark it as retrieved: asyncio would log the error if nobody awaits the future, for example
    # after the request was cancelled
    future.exception()


class _LiveShareStates:
    """Implements `LiveKeys` with one snapshot per state. A snapshot includes records in flight,
    because the copy follows them in the log and becomes durable only if they do.
    """

    def __init__(self, partition: _Partition) -> None:
        self._states = partition.states

    def keys(self) -> Iterator[bytes]:
        keys: Iterable[SharePartitionKey] = list(self._states)
        return (encode_share_key(key, SNAPSHOT) for key in keys)

    def get(self, key: bytes) -> Live | None:
        decoded = decode_share_key(key)
        stored = None if decoded is None else self._states.get(decoded[1])
        if stored is None:
            return None
        return Live(encode_share_value(stored.current), includes_in_flight=True)
