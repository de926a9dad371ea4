"""Append batches of many partitions to the storage as one group, in one WAL object, without an
await. This takes 25 us for one small batch in one partition.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from penstock.base.clock import monotonic_ms
from penstock.base.errors import StreamError
from penstock.base.ids import Millis, Offset
from penstock.broker.partition.mirrored import MirroredBatches
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.producer_state import KnownBatch
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.refused_batches import RefusedBatches
from penstock.broker.partition.verification import Guard
from penstock.protocol.batch.control import Marker
from penstock.protocol.batch.header import BatchHeader
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.errors import WalFull
from penstock.stream.storage import AppendEntry, Storage
from penstock.stream.wal.sender import Sender
from penstock.stream.wal.tracing import RequestTrace

NAMED_TWICE: Final = "a request may contain each partition only once"
_NO_OFFSET: Final = Offset(-1)

_DEPENDS_ON_END: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_TXN_STATE}
)
"""Rejections that would be wrong if a later leader has appended more batches. They write nothing,
so WAL fencing does not protect against this.
"""


class CheckedBatch(NamedTuple):
    """A producer's batch and the result of `validate_batch`. records: None if the request has no
    records, which is rejected.
    """

    records: memoryview | None
    verdict: BatchHeader | Refusal


Content: TypeAlias = CheckedBatch | memoryview | Marker | MirroredBatches
"""A producer's batch, a coordinator's batch, the marker that ends a transaction, or batches from a
mirror.
"""


class AppendOutcome(Struct, eq=False, gc=False):
    """The result for one partition's batch. It is final once the group is settled."""

    partition: Partition | None
    code: ErrorCode = ErrorCode.NONE
    is_repetition: bool = False
    """Whether nothing was appended, because the batch or marker is already in the log."""
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    base_offset: Offset = _NO_OFFSET
    end_offset: Offset = _NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: Offset = _NO_OFFSET

    def fail(self, code: ErrorCode, message: str | None) -> None:
        self.code = code
        self.message = message
        self.base_offset = self.end_offset = self.log_start_offset = _NO_OFFSET
        self.log_append_time_ms = -1


class _Planned(Struct, eq=False, gc=False):
    """A part of the group to append. header: None for mirrored batches."""

    partition: Partition
    header: BatchHeader | None
    size_bytes: int
    entries: list[AppendEntry]
    marker: Marker | None
    outcome: AppendOutcome


class PartitionAppend:
    """One append of a group. `outcomes` has one entry per part, in order. `settled` is called once,
    with this append, when all of them are final.

    All checks come before any change, so a rejected partition or group has no side effects. A batch
    whose predecessor was rejected is also rejected (`RefusedBatches`). Transaction events for
    readers of the store are in the same group as their batch. Batches, including repeated ones, are
    acknowledged only after they are durable. A group contains each partition at most once.
    """

    __slots__ = (
        "_from_coordinator",
        "_guard",
        "_is_whole",
        "_leads_alone",
        "_pending_count",
        "_planned",
        "_refusal",
        "_refused",
        "_sender",
        "_settled",
        "_storage",
        "_trace",
        "outcomes",
    )

    def __init__(
        self,
        settled: Callable[["PartitionAppend"], None],
        refused: RefusedBatches | None = None,
        *,
        leads_alone: Callable[[], bool] | None = None,
        from_coordinator: bool = False,
        guard: Guard | None = None,
        trace: RequestTrace | None = None,
        is_whole: bool = False,
        refusal: Refusal | None = None,
        sender: Sender | None = None,
    ) -> None:
        """refused, leads_alone (`Node.leads_alone`): None for batches without sequences.
        from_coordinator: the append comes from this broker, whose transactional batches have no
        sequence. guard: see `PartitionLog.plan`. is_whole: whether to append either all parts or
        none. refusal: the error of the schema check, which does not apply to batches that are
        already in the log. sender: see `WalCore.append`.
        """
        self.outcomes: list[AppendOutcome] = []
        self._planned: dict[Partition, _Planned] = {}
        self._settled: Callable[[PartitionAppend], None] | None = settled
        self._refused = refused
        self._leads_alone = leads_alone
        self._from_coordinator = from_coordinator
        self._guard = guard
        self._trace = trace
        self._is_whole = is_whole
        self._refusal = refusal
        self._sender = sender
        self._pending_count = 1

    def run(
        self, storage: Storage, parts: Sequence[tuple[Partition, Content]], now_ms: Millis
    ) -> None:
        """Append the accepted parts. Does not wait, but may call `settled` before it returns."""
        for partition, content in parts:
            self._plan(partition, content, now_ms)
        if self._is_whole and len(self._planned) < len(parts):
            for planned in self._planned.values():
                planned.outcome.fail(ErrorCode.INVALID_TXN_STATE, "another part was refused")
        elif self._planned:
            self._append(storage, now_ms)
        self._settle_one()

    def _plan(self, partition: Partition, content: Content | None, now_ms: Millis) -> None:
        outcome = AppendOutcome(partition)
        self.outcomes.append(outcome)
        verdict: BatchHeader | Refusal | None = None
        if isinstance(content, CheckedBatch):
            verdict, content = content.verdict, content.records
        reason = self._reason_to_wait(partition, content)
        if reason is not None:
            self._refuse(
                partition,
                content if isinstance(content, memoryview) else None,
                outcome,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                reason,
            )
            return
        log = partition.log
        if isinstance(content, MirroredBatches):
            self._plan_mirrored(partition, content, outcome)
            return
        marker: Marker | None = None
        records: memoryview | None
        plan: BatchHeader | KnownBatch | Refusal
        if isinstance(content, Marker):
            marker = content
            records, plan = log.plan_marker(marker, now_ms)
        else:
            records = content
            plan = log.plan(
                records,
                now_ms,
                verdict=verdict,
                from_coordinator=self._from_coordinator,
                guard=self._guard,
            )
        plan = self._with_refusal(plan)
        if isinstance(plan, Refusal):
            self._refuse(partition, records, outcome, *self._final_or_retriable(plan))
            outcome.record_errors = plan.record_errors
        elif isinstance(plan, KnownBatch):
            self._await_repetition(partition, plan, records, outcome)
        elif partition in self._planned:
            outcome.fail(ErrorCode.INVALID_REQUEST, NAMED_TWICE)
        else:
            assert records is not None
            self._planned[partition] = _Planned(
                partition,
                plan,
                plan.size_bytes,
                log.assign_offsets(records, plan, now_ms, marker),
                marker,
                outcome,
            )

    def _plan_mirrored(
        self, partition: Partition, content: MirroredBatches, outcome: AppendOutcome
    ) -> None:
        log, records = partition.log, content.records
        plan = log.plan_mirrored(content)
        if isinstance(plan, Refusal):
            outcome.fail(*self._final_or_retriable(plan))
        elif isinstance(plan, KnownBatch):
            self._await_repetition(partition, plan, None, outcome)
        elif partition in self._planned:
            outcome.fail(ErrorCode.INVALID_REQUEST, NAMED_TWICE)
        else:
            assert records is not None
            size_bytes = sum(header.size_bytes for _, header in plan)
            entries = log.mirrored_entries(records, plan)
            self._planned[partition] = _Planned(partition, None, size_bytes, entries, None, outcome)

    def _with_refusal(
        self, plan: BatchHeader | KnownBatch | Refusal
    ) -> BatchHeader | KnownBatch | Refusal:
        """Return the schema check's rejection instead of the plan, if it is more specific."""
        if self._refusal is None or isinstance(plan, KnownBatch):
            return plan
        is_damaged = self._refusal.code is ErrorCode.CORRUPT_MESSAGE
        return plan if is_damaged and isinstance(plan, Refusal) else self._refusal

    def _reason_to_wait(self, partition: Partition, content: Content | None) -> str | None:
        """Return the reason why the part cannot be appended now, or None."""
        if not partition.accepts_records:
            return "this broker is giving up the partition"
        if not self._refused or not isinstance(content, memoryview):
            return None
        refused, index, producers = self._refused, partition.index, partition.log.producers
        reasons = (
            refused.reason_to_wait(topic, index, content, producers, monotonic_ms())
            for topic in (partition.topic_name, partition.topic_id)
        )
        return next(filter(None, reasons), None)

    def _final_or_retriable(self, plan: Refusal) -> tuple[ErrorCode, str]:
        """Return the code and message of a rejection. They are retriable if a later leader might
        accept the batch.
        """
        if plan.code not in _DEPENDS_ON_END or self._leads_alone is None or self._leads_alone():
            return plan.code, plan.message
        return (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            (f"{plan.message}, as far as this broker knows; another broker may lead it already"),
        )

    def _refuse(
        self,
        partition: Partition,
        batch: BatchHeader | memoryview | None,
        outcome: AppendOutcome,
        code: ErrorCode,
        message: str,
    ) -> None:
        outcome.fail(code, message)
        if self._refused is not None:
            self._refused.remember(
                partition.topic_name, partition.index, batch, code, monotonic_ms()
            )

    def _append(self, storage: Storage, now_ms: Millis) -> None:
        entries = [entry for planned in self._planned.values() for entry in planned.entries]
        self._pending_count += 1
        self._storage = storage
        done = self._on_durable
        try:
            storage.append(entries, done, self._sender)
        except StreamError as error:
            self._pending_count -= 1
            self._fail_all(error)
            return
        if self._trace is not None:
            self._trace.appended(done)
        for partition, planned in self._planned.items():
            log, header, outcome = partition.log, planned.header, planned.outcome
            entry, last = planned.entries[0], planned.entries[0]
            if header is None:
                last = planned.entries[-1]
                log.dirty_bytes += planned.size_bytes
                partition.records_in += sum(item.record_count for item in planned.entries)
            else:
                log.appended(
                    header,
                    entry.base_offset,
                    now_ms,
                    planned.marker,
                    timestamp_ms=entry.max_timestamp_ms,
                    is_append_time=log.rules.is_log_append_time,
                )
                partition.records_in += header.record_count
            partition.bytes_in += planned.size_bytes
            partition.requests_count += 1
            outcome.base_offset = entry.base_offset
            outcome.end_offset = last.end_offset
            outcome.log_start_offset = log.data.start_offset
            if header is not None and log.rules.is_log_append_time:
                outcome.log_append_time_ms = now_ms

    def _await_repetition(
        self,
        partition: Partition,
        known: KnownBatch,
        batch: memoryview | None,
        outcome: AppendOutcome,
    ) -> None:
        outcome.is_repetition = True
        outcome.base_offset = known.base_offset
        outcome.end_offset = known.end_offset
        outcome.log_append_time_ms = known.append_time_ms
        outcome.log_start_offset = partition.log_start_offset
        self._pending_count += 1

        def settled(error: Exception | None) -> None:
            if error is not None:
                self._refuse(
                    partition, batch, outcome, ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)
                )
            self._settle_one()

        partition.when_durable(known.end_offset, settled)

    def _on_durable(self, error: Exception | None) -> None:
        if error is not None:
            # The records may still be durable. The producer finds out when it retries the batch, at
            # this leader or the next one.
            self._fail_all(error)
        for partition, planned in self._planned.items():
            if error is not None and (self._storage.fenced or partition.log.data.fenced):
                partition.stop(error)
            else:
                partition.advance(planned.size_bytes)
        self._settle_one()

    def _fail_all(self, error: Exception) -> None:
        # WalFull is temporary. After any other error, this incarnation can no longer acknowledge,
        # and another broker will become the leader.
        code = (
            ErrorCode.KAFKA_STORAGE_ERROR
            if isinstance(error, WalFull)
            else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        for planned in self._planned.values():
            self._refuse(planned.partition, planned.header, planned.outcome, code, str(error))

    def _settle_one(self) -> None:
        self._pending_count -= 1
        if self._pending_count == 0:
            # The callback refers to this group. Keeping it would create a reference cycle, and the
            # request would stay in memory until the next garbage collection.
            settled, self._settled = self._settled, None
            assert settled is not None, "it is called once"
            settled(self)
