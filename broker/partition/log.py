"""The log of an open partition: a data stream with Kafka's offsets, a meta stream of checkpoints,
and a txn stream of transaction events.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from penstock.base.ids import (
    Millis,
    Offset,
    StreamEpoch,
)
from penstock.broker.partition.aborted_transactions import (
    LogInconsistent,
    TxnStream,
    check_advanced,
    read_aborted,
)
from penstock.broker.partition.leader_epochs import LeaderEpochs
from penstock.broker.partition.meta_stream import MetaStream
from penstock.broker.partition.mirrored import (
    MirroredBatches,
    Positions,
    mirrored_entries,
    plan_mirrored,
)
from penstock.broker.partition.producer_state import (
    NO_SEQUENCE,
    PRODUCERS_COUNT_MAX,
    KnownBatch,
    ProducerSnapshot,
    ProducerState,
)
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.transactions import Transactions
from penstock.broker.partition.validation import DEFAULT_RULES, TopicRules, validate_batch
from penstock.broker.partition.verification import WITHOUT_ID, Guard, Verifications
from penstock.controller.metadata.records import ForkPoint
from penstock.protocol.batch.control import Marker, decode_marker, encode_marker
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import (
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    iter_headers,
    parse_header,
    patch_log_append_time,
    patch_offset_and_epoch,
    patch_times,
)
from penstock.protocol.batch.uncompressed_size import uncompressed_bytes
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.cleaning.batches import LOST_LEADER_EPOCH
from penstock.stream.format.checkpoint import (
    CLEANED_KEY,
    PRODUCERS_KEY,
    RECOVERY_KEY,
    CleanedPart,
    Recovery,
    decode_cleaned,
    decode_recovery,
)
from penstock.stream.format.transaction_log import (
    AbortedTransaction,
    TransactionEvent,
    encode_event,
)
from penstock.stream.storage import AppendEntry, Storage, StreamHandle

_log = structlog.get_logger(__name__)

_SCAN_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class LogConfig:
    """The limits for partitions, shared by all partitions of a broker."""

    checkpoint_bytes: int = 64 * 1024 * 1024
    """When this many bytes have been appended across all partitions of a broker, the partitions
    with the most new bytes get a checkpoint. This limits the scan after a crash, which new leaders
    share: 64 MiB take 0.3 s to read.
    """
    producers_count_max: int = PRODUCERS_COUNT_MAX
    """Maximum number of tracked producers per partition. If all are idle, they use 35 MiB, and a
    checkpoint 10 MB. Above the limit, the producer that has been inactive longest is dropped early,
    which raises an alert.
    """
    producer_silent_ms: int = 86_400_000
    """`producer.id.expiration.ms`: producers that have not written for this long are dropped,
    unless they have an open transaction. May change at any time.
    """
    open_transactions_count_max: int = 2_000
    """Maximum number of open transactions per partition; additional ones are rejected with a
    retriable error. It is less than the maximum number of producers, so that some producers can
    always be dropped.
    """


_encode = msgspec.msgpack.Encoder().encode
_decode_producers = msgspec.msgpack.Decoder(ProducerSnapshot).decode


class PartitionLog:
    __slots__ = (
        "_config",
        "_leader_epoch",
        "_reported_dropped_count",
        "cleaned",
        "data",
        "dirty_bytes",
        "dirty_since_ms",
        "epochs",
        "lost_end_offset",
        "meta",
        "producers",
        "rules",
        "transactions",
        "txn",
        "verifications",
    )

    def __init__(
        self, meta: MetaStream, data: StreamHandle, txn: StreamHandle, config: LogConfig
    ) -> None:
        self.meta = meta
        self.data = data
        self.txn = txn
        self.transactions = Transactions(txn.next_offset)
        self.rules: TopicRules = DEFAULT_RULES
        self.producers = ProducerState(config.producers_count_max)
        self.verifications = Verifications()
        self.epochs = LeaderEpochs()
        self.dirty_bytes = 0
        """Bytes appended since the last checkpoint."""
        self.cleaned = CleanedPart()
        self.dirty_since_ms: Millis | None = None
        """When this broker first detected records after the compacted part."""
        self.lost_end_offset = Offset(0)
        """End of the last scanned range that was lost with its WAL store. The range may have
        contained the end of any transaction that started below this offset.
        """
        self._config = config
        self._leader_epoch = data.epoch
        self._reported_dropped_count = 0

    @property
    def is_dirty(self) -> bool:
        return self.dirty_bytes > 0 or self.meta.is_trimmed_away or self.lacks_event

    @property
    def lacks_event(self) -> bool:
        """Return whether readers of the store cannot detect that a transaction is open, because its
        event was in a lost store and has been trimmed by the controller. `open_event` returns a
        replacement.
        """
        return self._is_event_trimmed_away and self.data.next_offset > self.txn.next_offset

    @property
    def _is_event_trimmed_away(self) -> bool:
        return len(self.transactions) > 0 and self.txn.next_offset <= self.txn.start_offset

    def plan(
        self,
        records: memoryview | None,
        now_ms: Millis,
        *,
        verdict: BatchHeader | Refusal | None = None,
        from_coordinator: bool = False,
        guard: Guard | None = None,
    ) -> BatchHeader | KnownBatch | Refusal:
        """Return the header for `assign_offsets`, the known batch that `records` repeats, or a
        rejection. Has no side effects.

        After a successful plan, `assign_offsets` and `appended` must be called without an await.

        verdict: the result of `validate_batch`, if it was already called. Otherwise, the batch is
        validated here, without the record check. guard: the guard under which the first batch of a
        transaction is appended; None if none is required.
        """
        header = verdict
        if header is None:
            header = validate_batch(records, self.rules, now_ms, from_coordinator=from_coordinator)
        if isinstance(header, Refusal) or header.producer_id < 0:
            return header
        transactional = header.attributes & TRANSACTIONAL_MASK != 0
        found = self.producers.check(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
            transactional=transactional,
        )
        if found is None:
            if not transactional:
                return header
            return self._check_verified(header, guard) or self._check_room(header) or header
        if isinstance(found, KnownBatch):
            return found
        return Refusal(found, self._reason(found, header))

    def _reason(self, code: ErrorCode, header: BatchHeader) -> str:
        """Return a message that explains why the producer state rejects a batch."""
        producer_id, epoch, sequence = (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        who = f"producer {producer_id} epoch {epoch}"
        match code:
            case ErrorCode.INVALID_PRODUCER_EPOCH:
                return f"{who}: this partition has a newer epoch of the producer"
            case ErrorCode.INVALID_TXN_STATE:
                return f"{who}: the batch is not part of the transaction that is open here"
            case ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return f"{who}: sequence {sequence} was appended before its newest batches"
            case _:
                expected = self.producers.expected_sequence(producer_id, epoch)
                return f"{who}: sequence {sequence} is out of order, {expected} is next"

    def plan_marker(
        self, marker: Marker, now_ms: Millis
    ) -> tuple[memoryview, BatchHeader | KnownBatch | Refusal]:
        """Return the control batch that ends a producer's transaction, with its header for
        `assign_offsets`, a repetition, or a rejection.

        Has no side effects. If the transaction has already ended, the `KnownBatch` ends at or after
        the marker that ended it.
        """
        batch = memoryview(encode_marker(marker, now_ms))
        code = self.producers.check_marker(marker)
        if self.rules.mirror_source and not self.transactions.is_open(marker.producer_id):
            # Only the mirror writes here, so the log contains no records of this transaction, and a
            # marker would use the offset of a source record.
            end = self.data.next_offset
            return batch, KnownBatch(NO_SEQUENCE, NO_SEQUENCE, end, end)
        if code is not None:
            who = (
                f"producer {marker.producer_id} epoch {marker.producer_epoch}, coordinator epoch"
                f" {marker.coordinator_epoch}"
            )
            return batch, Refusal(code, f"{who}: a newer one has written to this partition")
        if self.producers.is_repeated(marker):
            return batch, KnownBatch(
                NO_SEQUENCE, NO_SEQUENCE, self.data.next_offset, self.data.next_offset
            )
        return batch, parse_header(batch)

    def plan_mirrored(self, content: MirroredBatches) -> Positions | KnownBatch | Refusal:
        """Return the batches for `mirrored_entries`, the known batch that they repeat, or a
        rejection. Has no side effects.
        """
        return plan_mirrored(content, self.rules, self.data.next_offset)

    def mirrored_entries(self, records: memoryview, plan: Positions) -> list[AppendEntry]:
        """Write the leader epoch into the batches in place, and return the entries to append."""
        return mirrored_entries(records, plan, self.data.stream_id, self._leader_epoch)

    def assign_offsets(
        self, records: memoryview, header: BatchHeader, now_ms: Millis, marker: Marker | None = None
    ) -> list[AppendEntry]:
        """Write the offsets into the batch in place. Return the entry to append, followed by a
        transaction event for readers if one is needed.
        """
        base_offset = self.data.next_offset
        records = records[: header.size_bytes]
        oldest_ms, newest_ms = header.min_timestamp_ms, header.index_timestamp_ms
        if self.rules.is_log_append_time:
            patch_log_append_time(records, 0, now_ms)
            oldest_ms = newest_ms = now_ms
        else:
            patch_times(records, 0, header)
        patch_offset_and_epoch(records, 0, base_offset, self._leader_epoch)
        count = header.record_count
        end_offset = Offset(base_offset + count)
        entries = [
            AppendEntry(
                self.data.stream_id,
                base_offset,
                end_offset,
                count,
                Millis(oldest_ms),
                Millis(newest_ms),
                uncompressed_bytes(header.compression, records),
                records,
            )
        ]
        if header.attributes & TRANSACTIONAL_MASK:
            event = (
                self.transactions.end_event(marker, base_offset)
                if marker
                else self.transactions.begin_event(header.producer_id, base_offset)
            )
            if event is not None:
                entries.append(self._event_entry(event, end_offset, now_ms))
        return entries

    def open_event(self, now_ms: Millis) -> AppendEntry:
        """Return an event with the current first unstable offset. Call this if `lacks_event`, and
        append the event without an await.
        """
        event = TransactionEvent(self.transactions.first_unstable_offset)
        return self._event_entry(event, self.data.next_offset, now_ms)

    def appended(
        self,
        header: BatchHeader,
        base_offset: Offset,
        now_ms: Millis,
        marker: Marker | None = None,
        *,
        timestamp_ms: int,
        is_append_time: bool,
    ) -> None:
        """Update the state once the storage has accepted the batch at `base_offset`.

        timestamp_ms: the newest timestamp of the batch in the log. is_append_time: whether the
        broker set it.
        """
        self.dirty_bytes += header.size_bytes
        if marker is not None:
            self.producers.record_marker(marker, now_ms, timestamp_ms)
            self.verifications.ended(marker.producer_id)
            self.transactions.end(marker, base_offset)
        elif header.producer_id >= 0:
            transactional = header.attributes & TRANSACTIONAL_MASK != 0
            self.producers.record(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                # Log compaction removes records but does not change sequences, so the record count
                # cannot be used.
                header.last_offset_delta + 1,
                base_offset=base_offset,
                end_offset=Offset(base_offset + header.last_offset_delta + 1),
                now_ms=now_ms,
                timestamp_ms=timestamp_ms,
                append_time_ms=timestamp_ms if is_append_time else -1,
                transactional=transactional,
            )
            if transactional:
                self.transactions.begin(header.producer_id, base_offset)

    def checkpoint(self, now_ms: Millis) -> AppendEntry:
        """Return an entry with the state of everything appended so far: the producers, the leader
        epochs and the recovery offset. The caller must append it to the meta stream without an
        await.

        In the ordered WAL, it follows the data that it describes, so a durable checkpoint never
        describes lost data.
        """
        self.producers.expire(now_ms, self._config.producer_silent_ms)
        self.epochs.trim(self.data.start_offset)
        end = self.data.next_offset
        recovery = _encode(Recovery(end, list(self.epochs.entries)))
        producers = _encode(self.producers.snapshot(end))
        changes = {RECOVERY_KEY: recovery, PRODUCERS_KEY: producers}
        if self.cleaned.end > 0:
            changes[CLEANED_KEY] = _encode(self.cleaned)
        self.dirty_bytes = 0
        self._report_dropped()
        return self.meta.put(changes, now_ms)

    def _report_dropped(self) -> None:
        dropped = self.producers.dropped_count - self._reported_dropped_count
        if dropped:
            self._reported_dropped_count += dropped
            _log.warning(
                "producers_forgotten_early",
                stream_id=self.data.stream_id,
                count=dropped,
                limit=self._config.producers_count_max,
                effect="batches that these producers retry may be stored twice",
            )

    @property
    def txn_trim_offset(self) -> Offset | None:
        """Return the offset up to which the txn stream may be trimmed. Of the events below the log
        start, only the newest durable one is needed.
        """
        offset = Offset(min(self.data.start_offset, self.txn.confirmed_offset - 1))
        return offset if offset > self.txn.start_offset else None

    async def read_aborted(
        self, storage: Storage, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Return aborted transactions like `Transactions.aborted_within`, but from the txn stream.
        This takes at least one cold read. Raises the errors of `StreamReader.read`.
        """
        txn = TxnStream(self.txn.stream_id, self.txn.start_offset, self.txn.confirmed_offset)
        return await read_aborted(storage, txn, start_offset, end_offset)

    def _check_verified(self, header: BatchHeader, guard: Guard | None) -> Refusal | None:
        if guard is None:
            return None
        producer_id, epoch = header.producer_id, header.producer_epoch
        who = f"producer {producer_id} epoch {epoch}"
        if guard is WITHOUT_ID:
            return Refusal(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                f"{who}: a request with transactional records needs a transactional id",
            )
        if self.producers.is_in_transaction(producer_id, epoch):
            return None
        if not self.verifications.holds(guard, producer_id, epoch):
            return Refusal(
                ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction"
            )
        if guard.adds and header.base_sequence > 0 and not self.producers.is_known(producer_id):
            return Refusal(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{who}: the first sequence of a transaction is 0, not {header.base_sequence}",
            )
        return None

    def _check_room(self, header: BatchHeader) -> Refusal | None:
        limit = self._config.open_transactions_count_max
        if len(self.transactions) < limit or self.transactions.is_open(header.producer_id):
            return None
        return Refusal(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{limit} transactions are open in this partition; retry when one has completed",
        )

    def _event_entry(
        self, event: TransactionEvent, end_offset: Offset, now_ms: Millis
    ) -> AppendEntry:
        base_offset = self.txn.next_offset
        payload = memoryview(
            encode_event(event, base_offset, end_offset, self._leader_epoch, now_ms)
        )
        return AppendEntry(
            self.txn.stream_id, base_offset, end_offset, 1, now_ms, now_ms, len(payload), payload
        )


async def restore_log(
    storage: Storage,
    meta_handle: StreamHandle,
    data: StreamHandle,
    txn: StreamHandle,
    *,
    config: LogConfig,
    now_ms: Millis,
    fork: ForkPoint | None = None,
) -> PartitionLog:
    """Restore the log from its open streams: first the newest checkpoint, then the batch headers
    from the recovery offset to the end. Nothing is written, and the txn stream is not read.

    This takes one read after a clean close. Otherwise, the headers since the last checkpoint are
    also read. For a fork without its own checkpoint, the headers of the transactions that were open
    at the fork point are read.

    Raises MetaCorrupt or LogInconsistent (fail closed), and the errors of `StreamReader.read`
    (retriable).
    """
    meta = await MetaStream.restore(storage, meta_handle)
    log = PartitionLog(meta, data, txn, config)
    try:
        recovery_offset = _restore_checkpoint(log, fork)
    except msgspec.MsgspecError as error:
        raise LogInconsistent(
            meta_handle.stream_id, f"the checkpoint cannot be read: {error}"
        ) from error
    if recovery_offset > data.next_offset:
        raise LogInconsistent(
            data.stream_id,
            f"the checkpoint is at offset {recovery_offset}, but the log ends at"
            f" {data.next_offset}",
        )
    if recovery_offset < data.next_offset:
        try:
            if fork is not None and recovery_offset < fork.end_offset:
                await _scan(storage, log, recovery_offset, fork.end_offset, now_ms)
                log.producers.leave_source()
                recovery_offset = fork.end_offset
            await _scan(storage, log, recovery_offset, data.next_offset, now_ms)
        except BatchCorrupt as error:
            raise LogInconsistent(data.stream_id, str(error)) from error
        log.transactions.confirm(data.next_offset)
    log.epochs.assign(data.epoch, data.next_offset)
    return log


def _restore_checkpoint(log: PartitionLog, fork: ForkPoint | None) -> Offset:
    """Restore the state from the newest checkpoint, or from the fork point of a fork without one.
    Return the recovery offset.

    Raises MsgspecError.
    """
    recovery_offset = log.data.start_offset
    stored, producers = log.meta.get(RECOVERY_KEY), log.meta.get(PRODUCERS_KEY)
    if stored is not None:
        recovery = decode_recovery(stored)
        log.epochs = LeaderEpochs(recovery.epochs)
        recovery_offset = Offset(max(recovery.recovery_offset, log.data.start_offset))
    elif fork is not None:
        log.epochs = LeaderEpochs(fork.epochs)
        recovery_offset = Offset(max(fork.scan_offset, log.data.start_offset))
    if producers is not None:
        log.producers.restore(_decode_producers(producers))
        log.transactions.restore(log.producers.open_transactions())
    cleaned = log.meta.get(CLEANED_KEY)
    if cleaned is not None:
        log.cleaned = decode_cleaned(cleaned)
    return recovery_offset


async def _scan(
    storage: Storage, log: PartitionLog, recovery_offset: Offset, end: Offset, now_ms: Millis
) -> None:
    """Read the headers in [recovery_offset, end), which the last checkpoint does not cover."""
    data, offset = log.data, recovery_offset
    while offset < end:
        before = offset
        for chunk in await storage.reader.read(data.stream_id, offset, end, _SCAN_BYTES):
            for at, header in iter_headers(chunk):
                # The log may start inside a batch, and that batch may have started a transaction.
                if header.next_offset > offset:
                    batch = memoryview(chunk)[at : at + header.size_bytes]
                    _replay(log, batch, header, now_ms)
                    offset = Offset(header.next_offset)
        check_advanced(data.stream_id, before, offset, end)
    if end > recovery_offset:
        _log.info(
            "partition_log_scanned",
            stream_id=data.stream_id,
            from_offset=recovery_offset,
            end_offset=end,
            bytes=log.dirty_bytes,
        )


def _replay(log: PartitionLog, batch: memoryview, header: BatchHeader, now_ms: Millis) -> None:
    marker = None
    if header.is_control:
        marker = decode_marker(batch, header.producer_id, header.producer_epoch)
    base_offset = Offset(header.base_offset)
    if header.partition_leader_epoch == LOST_LEADER_EPOCH:
        log.lost_end_offset = Offset(header.next_offset)
    log.epochs.assign(StreamEpoch(header.partition_leader_epoch), base_offset)
    log.appended(
        header,
        base_offset,
        now_ms,
        marker,
        timestamp_ms=header.max_timestamp_ms,
        is_append_time=bool(header.attributes & TIMESTAMP_TYPE_MASK),
    )
