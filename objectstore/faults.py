"""Inject object store faults, for tests, simulation and benchmarks.

Invariant: a fault does only what a real store can do. LOST_RESPONSE executes the call and then
raises Unavailable; damaged reads change the response, never the stored object. The same `Random`
and call order result in the same faults. Source: SlateDB FailingObjectStore, s2 `sim/src/s3.rs`.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final, TypeVar

from penstock.base.buffers import Buffer
from penstock.objectstore.errors import AccessDenied, ConditionalConflict, Throttled, Unavailable
from penstock.objectstore.ports import Body, ObjectInfo, ObjectStore, ObjectTail

_T = TypeVar("_T")

_READS: Final = frozenset({"get", "get_range", "get_tail"})
_CONDITIONAL_WRITES: Final = frozenset({"put_if_absent", "put_if_match"})
_P99_NORMAL: Final = 2.3263478740408408


class Fault(Enum):
    """The fault injected into one call (for a list, into one key)."""

    THROTTLED = "503 SlowDown, nothing was done"
    RESET = "the connection broke before the store did anything"
    LOST_RESPONSE = "the store did it, the response got lost"
    CONFLICT = "409 of a conditional write, nothing was done"
    DENIED = "403"
    TRUNCATED = "a read gives fewer bytes than the object has"
    FLIPPED_BIT = "a read gives one wrong bit"

    def fits(self, operation: str) -> bool:
        """Return whether the fault can occur in this operation."""
        if self in {Fault.TRUNCATED, Fault.FLIPPED_BIT}:
            return operation in _READS
        return self is not Fault.CONFLICT or operation in _CONDITIONAL_WRITES


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects calls of these operations (all if empty) on keys with this prefix."""

    operations: frozenset[str] = frozenset()
    key_prefix: str = ""

    def matches(self, operation: str, key: str) -> bool:
        """Return whether the selection includes this call."""
        return (not self.operations or operation in self.operations) and key.startswith(
            self.key_prefix
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """A lognormal latency, given by two quantiles; constant if they are equal."""

    p50_ms: float
    p99_ms: float
    on: Selection = Selection()

    def draw_ms(self, rng: Random) -> float:
        """Draw one latency."""
        if self.p99_ms <= self.p50_ms:
            return self.p50_ms
        return self.p50_ms * math.exp(
            rng.gauss(0.0, 1.0) * math.log(self.p99_ms / self.p50_ms) / _P99_NORMAL
        )


@dataclass(frozen=True, slots=True)
class FaultRule:
    """A random fault. When it occurs, it also affects the next `burst_count - 1` selected calls."""

    fault: Fault
    probability: float
    on: Selection = Selection()
    burst_count: int = 1


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """The latencies and faults of a store. In each list, the first entry that matches a call and
    takes effect is used.
    """

    latencies: tuple[Latency, ...] = ()
    rules: tuple[FaultRule, ...] = ()


class FaultyStore:
    """Wraps a store and injects faults.

    Set `down` to make every call raise Unavailable. `config` may be replaced at any time.
    `injected` counts the faults.
    """

    def __init__(
        self,
        store: ObjectStore,
        rng: Random,
        config: FaultConfig | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """sleep: waits for a number of seconds."""
        self.config = config or FaultConfig()
        self.down = False
        self.injected: Counter[Fault] = Counter()
        self._store = store
        self._rng = rng
        self._sleep = sleep
        self._script: deque[tuple[Fault, Selection]] = deque()
        self._bursts: Counter[FaultRule] = Counter()

    def script(self, fault: Fault, on: Selection | None = None, *, count: int = 1) -> None:
        """Inject the fault into the next `count` selected calls that it applies to. Entries are
        used in order.
        """
        self._script.extend([(fault, on or Selection())] * count)

    @property
    def scripted_count(self) -> int:
        """The number of scripted faults that have not occurred yet."""
        return len(self._script)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        data, fault = await self._call("get", key, lambda: self._store.get(key))
        return self._damage(data, fault)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See ObjectStore.get_range."""
        data, fault = await self._call(
            "get_range", key, lambda: self._store.get_range(key, start, length)
        )
        return data if fault is None else self._damage(bytes(data), fault)

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        tail, fault = await self._call("get_tail", key, lambda: self._store.get_tail(key, length))
        return replace(tail, data=self._damage(tail.data, fault))

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        return (await self._call("head", key, lambda: self._store.head(key)))[0]

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        return (await self._call("put", key, lambda: self._store.put(key, body)))[0]

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        return (
            await self._call("put_if_absent", key, lambda: self._store.put_if_absent(key, body))
        )[0]

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return (
            await self._call("put_if_match", key, lambda: self._store.put_if_match(key, body, etag))
        )[0]

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        found = self._store.list(prefix, start_after=start_after, limit=limit)
        while True:
            info, _ = await self._call("list", prefix, lambda: anext(found, None))
            if info is None:
                return
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete. Rules match the first key."""
        await self._call("delete", keys[0] if keys else "", lambda: self._store.delete(keys))

    async def close(self) -> None:
        """Close the wrapped store, regardless of faults."""
        await self._store.close()

    async def _call(
        self, operation: str, key: str, call: Callable[[], Awaitable[_T]]
    ) -> tuple[_T, Fault | None]:
        latency_ms = self._latency_ms(operation, key)
        if latency_ms > 0:
            await self._sleep(latency_ms / 1_000)
        if self.down:
            raise Unavailable(operation, key, "the store is down (injected)")
        fault = self._draw(operation, key)
        if fault is not None:
            self.injected[fault] += 1
            self._raise_before(fault, operation, key)
        result = await call()
        if fault is Fault.LOST_RESPONSE or self.down:
            raise Unavailable(operation, key, "the response was lost (injected)")
        return result, fault

    def _raise_before(self, fault: Fault, operation: str, key: str) -> None:
        if fault is Fault.THROTTLED:
            raise Throttled(operation, key)
        if fault is Fault.RESET:
            raise Unavailable(operation, key, "the connection broke (injected)")
        if fault is Fault.CONFLICT:
            raise ConditionalConflict(key)
        if fault is Fault.DENIED:
            raise AccessDenied(operation, key, "403 (injected)")

    def _latency_ms(self, operation: str, key: str) -> float:
        for latency in self.config.latencies:
            if latency.on.matches(operation, key):
                return latency.draw_ms(self._rng)
        return 0.0

    def _draw(self, operation: str, key: str) -> Fault | None:
        for index, (fault, on) in enumerate(self._script):
            if fault.fits(operation) and on.matches(operation, key):
                del self._script[index]
                return fault
        for rule in self.config.rules:
            if (
                rule.fault.fits(operation)
                and rule.on.matches(operation, key)
                and self._strikes(rule)
            ):
                return rule.fault
        return None

    def _strikes(self, rule: FaultRule) -> bool:
        if self._bursts[rule] > 0:
            self._bursts[rule] -= 1
            return True
        if self._rng.random() >= rule.probability:
            return False
        self._bursts[rule] = rule.burst_count - 1
        return True

    def _damage(self, data: bytes, fault: Fault | None) -> bytes:
        if fault is Fault.TRUNCATED and data:
            return data[: self._rng.randrange(len(data))]
        if fault is Fault.FLIPPED_BIT and data:
            damaged = bytearray(data)
            damaged[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            return bytes(damaged)
        return data
