"""In-memory states of share partitions, for coordinators without a share coordinator."""

import asyncio
from collections.abc import Sequence

from penstock.broker.groups.share.state.machine import ShareStates
from penstock.broker.groups.share.state.model import (
    ANY_EPOCH,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateSummary,
    StateBatch,
)
from penstock.protocol.error_codes import ErrorCode


class MemoryShareStates:
    """Implement `ShareStateStore`. The states outlive the coordinators that use them."""

    def __init__(self) -> None:
        self.states = ShareStates(updates_max=500)
        self.error = ErrorCode.NONE
        """The error with which all calls fail."""
        self.calls: list[str] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def _enter(self, call: str) -> None:
        self.calls.append(call)
        await self.may_go_on.wait()
        await asyncio.sleep(0)
        if self.error is not ErrorCode.NONE:
            raise ShareStateError(self.error)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        await self._enter("read")
        return self.states.read(key, leader_epoch, 0)[0]

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
        await self._enter("write")
        self.states.write(
            key,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            batches=batches,
            now_ms=0,
        )

    async def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> None:
        await self._enter("initialize")
        self.states.initialize(key, state_epoch, start_offset, 0)

    async def delete(self, key: SharePartitionKey, *, state_epoch: int = ANY_EPOCH) -> None:
        await self._enter("delete")
        self.states.delete(key, state_epoch)

    async def summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> ShareStateSummary:
        await self._enter("summary")
        return self.states.summary(key)
