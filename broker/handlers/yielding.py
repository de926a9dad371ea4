"""Go through what a request names, with turns for the event loop in between.

A request of a megabyte names fifty thousand things. Each is looked up in microseconds, and all of
them together would stop heartbeats and other clients for seconds.
Invariants: the first slice of a request is long enough for nearly all requests. The others take
turns, one slice of one request at a time, in the order in which they became due, with a pause after
each. So all long requests together take a third of the event loop, however many there are.
Source: docs/design/fairness.md.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Hashable, Iterable, Sequence
from contextvars import Context
from itertools import islice
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from penstock.base.clock import MonotonicClock

FIRST_SLICE_S: Final = 0.002
"""Work before the first pause."""

SLICE_S: Final = 0.000_5
"""Work between two pauses. A Produce takes about eight turns of the event loop, and may meet a
slice in each. A turn costs 20 us.
"""

PAUSE_S: Final = 0.001
"""The event loop serves others between two slices. Timers of libuv count milliseconds."""

SLICE_COUNT: Final = 500
"""Steps that may wait at the same time. A request that names fewer things is no long one."""

STARTED_COUNT: Final = 8
"""Steps that begin in one turn of the event loop: 0.2 to 0.5 ms."""

CHUNK_COUNT: Final = 100

_clock: MonotonicClock = time.perf_counter
"""The simulator replaces it, since the time that work takes differs in every run."""

_T = TypeVar("_T")
_H = TypeVar("_H", bound=Hashable)


class Slices:
    """Counts the time of one request. Await `turn` whenever `is_over`."""

    __slots__ = ("_ends_at",)

    def __init__(self) -> None:
        self._ends_at = _clock() + FIRST_SLICE_S

    @property
    def is_over(self) -> bool:
        return _clock() >= self._ends_at

    async def turn(self) -> None:
        """Let others have their turns, then begin the next slice."""
        await _next_turn()
        self._ends_at = _clock() + SLICE_S


async def sliced(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items."""
    slices = Slices()
    for item in items:
        yield item
        if slices.is_over:
            await slices.turn()


async def chunked(items: Sequence[_T]) -> AsyncIterator[Sequence[_T]]:
    """Yield the items in parts, for work that takes less time than a step of a generator."""
    slices = Slices()
    for at in range(0, len(items), CHUNK_COUNT):
        yield items[at : at + CHUNK_COUNT]
        if slices.is_over:
            await slices.turn()


async def listed(items: Iterable[_T]) -> list[_T]:
    """Return the items, which are made one by one: pass a generator."""
    slices = Slices()
    found: list[_T] = []
    for item in items:
        found.append(item)
        if slices.is_over:
            await slices.turn()
    return found


async def counted(items: Iterable[_H]) -> Counter[_H]:
    """Return how often each item is there."""
    slices = Slices()
    found: Counter[_H] = Counter()
    left = iter(items)
    while some := list(islice(left, CHUNK_COUNT)):
        found.update(some)
        if slices.is_over:
            await slices.turn()
    return found


async def smallest(texts: Iterable[str], count: int) -> list[str]:
    """Return the smallest texts in order, at most `count` of them, each once."""
    slices = Slices()
    found: list[str] = []
    left = iter(texts)
    while some := list(islice(left, count)):
        if len(found) == count:  # a request of sorted names ends here
            some = [text for text in some if text < found[-1]]
        if some:
            found = sorted({*found, *some})[:count]
        if slices.is_over:
            await slices.turn()
    return found


async def each_once(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items, which are hashable, without repetitions."""
    seen: set[_T] = set()
    async for item in sliced(items):
        if item not in seen:
            seen.add(item)
            yield item


async def gathered(steps: Iterable[Awaitable[_T]]) -> list[_T]:
    """Return the results of all steps, of which SLICE_COUNT run at the same time. Steps that wait
    share a deadline, which is a point in time: then waits do not add up. No pause for fewer than
    STARTED_COUNT.
    """
    found: list[_T] = []
    left = iter(steps)
    while True:
        started: list[asyncio.Future[_T]] = []
        try:
            while len(started) < SLICE_COUNT and (some := list(islice(left, STARTED_COUNT))):
                started += map(asyncio.ensure_future, some)
                if len(some) == STARTED_COUNT:
                    await _next_turn()
            found += await asyncio.gather(*started)
        except BaseException:
            for step in started:
                step.cancel()
            raise
        if len(started) < SLICE_COUNT:
            return found


class _Turns:
    """The slices that are due on one event loop."""

    def __init__(self) -> None:
        self._due: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        due: asyncio.Future[None] = loop.create_future()
        self._due.append(due)
        if len(self._due) == 1:
            self._begin_later()
        await due

    def _begin_later(self) -> None:
        # In an empty context: the timer serves all requests, not the one that starts it.
        asyncio.get_running_loop().call_later(PAUSE_S, self._begin_first, context=Context())

    def _begin_first(self) -> None:
        """Let the first one run in the next turn of the event loop, and the others after it, each
        behind a pause.
        """
        first = self._due.popleft()
        if self._due:
            self._begin_later()
        if not first.done():  # its connection may have closed
            first.set_result(None)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def _next_turn() -> None:
    await _turns.setdefault(asyncio.get_running_loop(), _Turns()).next()
