"""States of share partitions in memory, until the share coordinator is there."""

from collections.abc import Sequence

from broker.share.state import (
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateSummary,
    StateBatch,
)
from broker.wire.error_codes import ErrorCode


class MemoryShareStates:
    def __init__(self) -> None:
        self._states: dict[SharePartitionKey, tuple[int, int, int, dict[int, tuple[int, int]]]] = {}

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        epoch, start, known, states = self._states.get(key, (0, NO_START_OFFSET, 0, {}))
        if leader_epoch < known:
            raise ShareStateError(ErrorCode.FENCED_LEADER_EPOCH)
        self._states[key] = (epoch, start, leader_epoch, states)
        return ShareState(
            epoch,
            start,
            leader_epoch,
            tuple(StateBatch(a, a, *s) for a, s in sorted(states.items())),
        )

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        epoch, _, known, states = self._states[key]
        if leader_epoch < known:
            raise ShareStateError(ErrorCode.FENCED_LEADER_EPOCH)
        for batch in batches:
            for at in range(batch.first_offset, batch.last_offset + 1):
                states[at] = (batch.delivery_state, batch.delivery_count)
        kept = {at: state for at, state in states.items() if at >= start_offset}
        self._states[key] = (epoch, start_offset, leader_epoch, kept)

    async def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> None:
        self._states[key] = (state_epoch, start_offset, 0, {})

    async def delete(self, key: SharePartitionKey) -> None:
        self._states.pop(key, None)

    async def summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> ShareStateSummary:
        epoch, start, known, _ = self._states[key]
        return ShareStateSummary(epoch, known, start, -1)
