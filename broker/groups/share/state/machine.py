"""The states of the share partitions of one partition of `__share_group_state`, as a pure state
machine (KIP-932, KIP-1226).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from penstock.broker.groups.share.state.combining import combine
from penstock.broker.groups.share.state.model import (
    ACKNOWLEDGED,
    ANY_EPOCH,
    ARCHIVED,
    AVAILABLE,
    NO_COUNT,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateSummary,
    StateBatch,
)
from penstock.broker.groups.share.state.records import (
    SNAPSHOT,
    UPDATE,
    ShareSnapshot,
    ShareUpdate,
    ShareValue,
    decode_share_key,
    decode_share_value,
    encode_share_key,
    encode_share_value,
)
from penstock.protocol.error_codes import ErrorCode

DELETED_MAX: Final = 50_000
"""Maximum number of remembered deletions, each about 300 bytes. After a load, only deletions that
are still in the log are remembered.
"""
_DELIVERY_STATES: Final = frozenset({AVAILABLE, ACKNOWLEDGED, ARCHIVED})

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class StoredState:
    current: ShareSnapshot
    updates_count: int = 0
    """Number of updates since the last snapshot."""


class ShareStates:
    """Methods that change a state return the record to write, or None if nothing has changed;
    `delete` returns a tuple of records. They raise ShareStateError.

    A write is one record: an update with the changes, or a snapshot with the whole state after
    `updates_max` updates. Each change is applied as soon as its record is created; replaying the
    records rebuilds the same states on another broker. Writes with an older state epoch or leader
    epoch change nothing. The start offset of a state epoch never decreases, and nothing below it is
    stored, so late writes cannot restore records that are done. Initializing a state twice in the
    same epoch has no effect, because a coordinator may send a late duplicate. A deletion does not
    affect newer epochs, and the state cannot be created again in its epoch or an older one.
    """

    def __init__(self, updates_max: int) -> None:
        self._updates_max = updates_max
        self._states: dict[SharePartitionKey, StoredState] = {}
        self._deleted: OrderedDict[SharePartitionKey, int] = OrderedDict()
        """The last epochs of deleted states."""

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[SharePartitionKey]:
        return iter(self._states)

    def get(self, key: SharePartitionKey) -> StoredState | None:
        return self._states.get(key)

    def deleted_epoch(self, key: SharePartitionKey) -> int:
        """Return the last epoch of a deleted state, or ANY_EPOCH if it is unknown."""
        return self._deleted.get(key, ANY_EPOCH)

    def put_back(
        self, key: SharePartitionKey, before: StoredState | None, deleted_epoch: int
    ) -> None:
        """Undo a step whose records were rejected immediately. before, deleted_epoch: the values
        before the step.
        """
        if before is None:
            self._states.pop(key, None)
        else:
            self._states[key] = before
        if deleted_epoch != self.deleted_epoch(key):
            self._deleted.pop(key, None)
            if deleted_epoch != ANY_EPOCH:
                self._deleted[key] = deleted_epoch

    # --- steps ------------------------------------------------------------------------------------

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int
    ) -> EncodedRecord | None:
        """Create the state, or restart it at an offset. If no epoch is given, the last epoch is
        kept, so that requests with earlier epochs stay fenced. Kafka fences them as well, but then
        reports epoch -1.
        """
        before = self._states.get(key)
        if before is None:
            deleted_epoch = self.deleted_epoch(key)
            if ANY_EPOCH != state_epoch <= deleted_epoch:
                raise _fenced_state()
            epoch = max(state_epoch, deleted_epoch)
            first = ShareSnapshot(0, epoch, 0, start_offset, NO_COUNT, now_ms, now_ms)
            return self._apply(key, first)
        known = before.current
        if state_epoch == ANY_EPOCH:
            state_epoch = known.state_epoch
        elif state_epoch < known.state_epoch:
            raise _fenced_state()
        elif state_epoch == known.state_epoch:
            return None
        return self._apply(
            key,
            ShareSnapshot(
                known.snapshot_epoch + 1,
                state_epoch,
                known.leader_epoch,
                start_offset,
                NO_COUNT,
                now_ms,
                now_ms,
            ),
        )

    def read(
        self, key: SharePartitionKey, leader_epoch: int, now_ms: int
    ) -> tuple[ShareState, EncodedRecord | None]:
        """Return the state. A new leader epoch is recorded, to fence earlier leaders."""
        before = self._states.get(key)
        if before is None:
            raise ShareStateError(
                ErrorCode.INVALID_REQUEST,
                "Read operation on uninitialized share partition not allowed.",
            )
        known = before.current
        if leader_epoch < known.leader_epoch:
            raise _fenced_leader()
        found = ShareState(
            known.state_epoch,
            known.start_offset,
            leader_epoch,
            known.batches,
        )
        if leader_epoch == known.leader_epoch:
            return found, None
        update = ShareUpdate(
            known.snapshot_epoch, leader_epoch, known.start_offset, known.delivery_complete_count
        )
        return found, self._change(key, before, update, known.state_epoch, now_ms)

    def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
        now_ms: int,
    ) -> EncodedRecord:
        before = self._states.get(key)
        if before is None:
            raise ShareStateError(
                ErrorCode.INVALID_REQUEST,
                "Write operation on uninitialized share partition not allowed.",
            )
        known = before.current
        if ANY_EPOCH != leader_epoch < known.leader_epoch:
            raise _fenced_leader()
        if ANY_EPOCH != state_epoch < known.state_epoch:
            raise _fenced_state()
        _check_batches(batches)
        start = max(start_offset, known.start_offset)
        if start_offset < known.start_offset:
            delivery_complete_count = known.delivery_complete_count
        elif start_offset == known.start_offset:
            delivery_complete_count = max(delivery_complete_count, known.delivery_complete_count)
        update = ShareUpdate(
            known.snapshot_epoch,
            known.leader_epoch if leader_epoch == ANY_EPOCH else leader_epoch,
            start,
            delivery_complete_count,
            combine((), batches, start),
        )
        state_epoch = max(state_epoch, known.state_epoch)
        return self._change(key, before, update, state_epoch, now_ms)

    def delete(
        self, key: SharePartitionKey, state_epoch: int = ANY_EPOCH
    ) -> tuple[EncodedRecord, ...]:
        """Return the records to write: a tombstone, preceded by a snapshot with the epoch if the
        next coordinator would not otherwise remember the epoch.
        """
        known = self._states.get(key)
        if known is not None and ANY_EPOCH != state_epoch < known.current.state_epoch:
            raise _fenced_state()
        remembered = self._deleted.get(key, 0) if known is None else known.current.state_epoch
        if state_epoch == ANY_EPOCH:
            self._states.pop(key, None)
        else:
            self._forget(key, state_epoch)
        record_key = encode_share_key(key, SNAPSHOT)
        if state_epoch > remembered:
            last = ShareSnapshot(0, state_epoch, 0, NO_START_OFFSET, NO_COUNT, 0, 0)
            return (record_key, encode_share_value(last)), (record_key, None)
        return () if known is None else ((record_key, None),)

    def _forget(self, key: SharePartitionKey, state_epoch: int) -> None:
        """Remove a state, and remember its last epoch."""
        known = self._states.pop(key, None)
        if known is not None:
            state_epoch = max(state_epoch, known.current.state_epoch)
        # Group epochs start at 1. An epoch of 0 or below fences no group, but would reject requests
        # with epoch 0, which Kafka allows, and use memory for each deleted key.
        if state_epoch > self._deleted.get(key, 0):
            self._deleted[key] = state_epoch
            self._deleted.move_to_end(key)
        if len(self._deleted) > DELETED_MAX:
            self._deleted.popitem(last=False)

    def summary(self, key: SharePartitionKey) -> ShareStateSummary:
        """Return the state without its batches. If the state does not exist, the result has no
        start offset.
        """
        stored = self._states.get(key)
        if stored is None:
            return ShareStateSummary(0, 0, NO_START_OFFSET, NO_COUNT, self.deleted_epoch(key))
        known = stored.current
        return ShareStateSummary(
            known.state_epoch,
            known.leader_epoch,
            known.start_offset,
            known.delivery_complete_count,
        )

    def _change(
        self,
        key: SharePartitionKey,
        before: StoredState,
        update: ShareUpdate,
        state_epoch: int,
        now_ms: int,
    ) -> EncodedRecord:
        """Apply a change as an update. Apply it as a snapshot instead after many updates, or if the
        state epoch changes, which an update does not contain.
        """
        is_new_epoch = state_epoch != before.current.state_epoch
        if before.updates_count < self._updates_max and not is_new_epoch:
            return self._apply(key, update)
        merged = _merged(before.current, update)
        whole = replace(
            merged,
            snapshot_epoch=merged.snapshot_epoch + 1,
            state_epoch=state_epoch,
            create_ms=now_ms,
            write_ms=now_ms,
        )
        return self._apply(key, whole)

    # --- records ----------------------------------------------------------------------------------

    def _apply(self, key: SharePartitionKey, value: ShareValue) -> EncodedRecord:
        self.apply(key, value)
        kind = SNAPSHOT if isinstance(value, ShareSnapshot) else UPDATE
        return encode_share_key(key, kind), encode_share_value(value)

    def apply(self, key: SharePartitionKey, value: ShareValue | None) -> None:
        """Apply one record. A value of None deletes the state."""
        before = self._states.get(key)
        if value is None:
            self._forget(key, ANY_EPOCH)
        elif isinstance(value, ShareSnapshot):
            self._states[key] = StoredState(value)
        elif before is not None:
            self._states[key] = StoredState(
                _merged(before.current, value), before.updates_count + 1
            )
        # The log start has advanced past the snapshot of this update: a copy of the whole state
        # follows (`broker.coordination.compaction`).

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. Raises MalformedShareRecord."""
        decoded = decode_share_key(key)
        if decoded is not None:
            kind, share_partition = decoded
            if value is not None:
                self.apply(share_partition, decode_share_value(kind, value))
            elif kind == SNAPSHOT:
                self.apply(share_partition, None)


def _merged(known: ShareSnapshot, update: ShareUpdate) -> ShareSnapshot:
    start = known.start_offset if update.start_offset == NO_START_OFFSET else update.start_offset
    return replace(
        known,
        leader_epoch=known.leader_epoch
        if update.leader_epoch == ANY_EPOCH
        else update.leader_epoch,
        start_offset=start,
        delivery_complete_count=update.delivery_complete_count,
        batches=combine(known.batches, update.batches, start),
    )


def _fenced_leader() -> ShareStateError:
    return ShareStateError(ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH.message)


def _fenced_state() -> ShareStateError:
    return ShareStateError(ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_STATE_EPOCH.message)


def _check_batches(batches: Iterable[StateBatch]) -> None:
    for batch in batches:
        is_valid = (
            0 <= batch.first_offset <= batch.last_offset
            and batch.delivery_state in _DELIVERY_STATES
            and batch.delivery_count >= 0
        )
        if not is_valid:
            raise ShareStateError(
                ErrorCode.INVALID_REQUEST,
                f"The state batch {batch} is invalid: offsets must not be negative nor the last"
                " below the first, the delivery state must be 0, 2 or 4, the delivery count must"
                " not be negative.",
            )
