"""Which keys (groups, transactional ids) this broker coordinates: the partitions of an internal topic that it leads, each with its state.

Becoming leader loads the state of a partition from its start; losing it forgets the state. Invariants: a state is found only when it is
whole and nobody else can have changed it: not by a broker that was paused and wakes up with what was true before, or it would confirm a
commit that nobody wrote. At most one load runs for a partition, and it is repeated until it succeeds or the partition is lost.
Must not: know what a state holds.
Source: Kafka GroupMetadataManager, TransactionStateManager (load and unload), CoordinatorRuntime.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Generic, TypeVar

import structlog

from broker.coordinator_log import CoordinatorLog
from broker.wire.error_codes import ErrorCode

log = structlog.get_logger()

LOAD_RETRY_S: Final = 0.5
LOAD_WAIT_S: Final = 2.0
"""How long a request waits for its key to be loaded; librdkafka hands COORDINATOR_LOAD_IN_PROGRESS to the application here and there."""

State = TypeVar("State")


class Coordinated(Generic[State]):
    """`load` makes the state of a partition; `unload` is told of one that is gone."""

    def __init__(
        self, coordinator_log: CoordinatorLog, load: Callable[[int], Coroutine[Any, Any, State]], unload: Callable[[State], None]
    ) -> None:
        self._log = coordinator_log
        self._load = load
        self._unload = unload
        self._loaders: dict[int, asyncio.Task[None]] = {}
        self._states: dict[int, State] = {}
        self._released: set[int] = set()
        """Partitions that were closed here: their next leader is another broker, though the metadata may name us for a moment."""
        self._changed = asyncio.Event()
        """Set and replaced whenever a partition is loaded or closed."""

    def opened(self, partition: int) -> None:
        """This broker leads the partition now: load it."""
        self.closed(partition)
        self._released.discard(partition)
        self._loaders[partition] = asyncio.get_running_loop().create_task(self._load_until_done(partition))

    def closed(self, partition: int) -> None:
        self._released.add(partition)
        loader = self._loaders.pop(partition, None)
        if loader is not None:
            loader.cancel()
        state = self._states.pop(partition, None)
        self._tell_change()
        if state is not None:
            self._unload(state)

    def close(self) -> None:
        for partition in [*self._loaders, *self._states]:
            self.closed(partition)

    def get(self, partition: int) -> State | None:
        """None: not led here, or not loaded yet."""
        return self._states.get(partition)

    def is_loading(self, partition: int) -> bool:
        return partition in self._loaders

    def loaded(self) -> Iterator[State]:
        return iter(list(self._states.values()))

    def partition_of(self, key: str) -> int | None:
        """None while the topic does not exist."""
        count = self._log.partition_count
        return partition_for(key, count) if count > 0 else None

    def find(self, key: str) -> State | ErrorCode:
        partition = self.partition_of(key)
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        state = self._states.get(partition)
        if state is not None:
            return state if self._log.can_write else ErrorCode.NOT_COORDINATOR
        is_ours = partition in self._loaders or (partition not in self._released and self._log.is_ours(partition))
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_ours else ErrorCode.NOT_COORDINATOR

    async def ready(self, key: str) -> None:
        """Wait, up to LOAD_WAIT_S, while the key is on its way to this broker: FindCoordinator names us before the partition is loaded.

        Every request begins with this; afterwards the answers are those of the moment, which may still be a retriable error.
        """
        if self.find(key) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOAD_WAIT_S):
                while self.find(key) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    await self._changed.wait()

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _load_until_done(self, partition: int) -> None:
        while True:
            try:
                state = await self._load(partition)
            except Exception as error:  # noqa: BLE001 - whatever the read met, the keys of this partition must come back: log, wait, again
                log.warning("coordinator_load_failed", partition=partition, error=str(error), kind=type(error).__name__)
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            del self._loaders[partition]
            self._states[partition] = state
            self._tell_change()
            return


def partition_for(key: str, partition_count: int) -> int:
    """Which partition of the internal topic a key lives in: Java's String.hashCode, made positive, as every Kafka tool expects."""
    encoded = key.encode("utf-16-be")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value & 0x80000000 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partition_count
