"""Iterate over a large request, yielding to the event loop. See docs/design/fairness.md.

A request of one megabyte may contain fifty thousand elements. Each lookup takes microseconds, but
all of them together would block heartbeats and other clients for seconds.
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
"""Length of the first slice of work. Nearly all requests complete within this time."""

SLICE_S: Final = 0.000_5
"""Length of later slices. A Produce request takes about eight event loop iterations, and a slice
may delay each of them. Yielding costs 20 us.
"""

PAUSE_S: Final = 0.001
"""Time for other tasks between two slices. libuv timers have millisecond resolution."""

SLICE_COUNT: Final = 500
"""Maximum number of concurrent steps. Requests with fewer elements are not treated as long."""

STARTED_COUNT: Final = 8
"""Number of steps started per event loop iteration, which takes 0.2 to 0.5 ms."""

CHUNK_COUNT: Final = 100

_clock: MonotonicClock = time.perf_counter
"""The simulator replaces this clock, because measured times differ from run to run."""

_T = TypeVar("_T")
_H = TypeVar("_H", bound=Hashable)


class Slices:
    """Measures the time spent on one request. Await `turn` when `is_over`."""

    __slots__ = ("_ends_at",)

    def __init__(self) -> None:
        self._ends_at = _clock() + FIRST_SLICE_S

    @property
    def is_over(self) -> bool:
        return _clock() >= self._ends_at

    async def turn(self) -> None:
        """Let other tasks run, then start the next slice."""
        await _next_turn()
        self._ends_at = _clock() + SLICE_S


async def sliced(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items one by one, pausing between slices."""
    slices = Slices()
    for item in items:
        yield item
        if slices.is_over:
            await slices.turn()


async def chunked(items: Sequence[_T]) -> AsyncIterator[Sequence[_T]]:
    """Yield the items in chunks, for work that takes less time than a generator step."""
    slices = Slices()
    for at in range(0, len(items), CHUNK_COUNT):
        yield items[at : at + CHUNK_COUNT]
        if slices.is_over:
            await slices.turn()


async def listed(items: Iterable[_T]) -> list[_T]:
    """Return a list of the items. Pass a generator so that the items are also created in slices."""
    slices = Slices()
    found: list[_T] = []
    for item in items:
        found.append(item)
        if slices.is_over:
            await slices.turn()
    return found


async def counted(items: Iterable[_H]) -> Counter[_H]:
    """Return the number of occurrences of each item."""
    slices = Slices()
    found: Counter[_H] = Counter()
    left = iter(items)
    while some := list(islice(left, CHUNK_COUNT)):
        found.update(some)
        if slices.is_over:
            await slices.turn()
    return found


async def smallest(texts: Iterable[str], count: int) -> list[str]:
    """Return at most `count` of the smallest distinct strings, in order."""
    slices = Slices()
    found: list[str] = []
    left = iter(texts)
    while some := list(islice(left, count)):
        if len(found) == count:  # if the names are sorted, no later chunk contributes any
            some = [text for text in some if text < found[-1]]
        if some:
            found = sorted({*found, *some})[:count]
        if slices.is_over:
            await slices.turn()
    return found


async def each_once(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the distinct items, which must be hashable."""
    seen: set[_T] = set()
    async for item in sliced(items):
        if item not in seen:
            seen.add(item)
            yield item


async def gathered(steps: Iterable[Awaitable[_T]]) -> list[_T]:
    """Return the results of all steps, up to SLICE_COUNT of which run concurrently. Steps that wait
    must share a deadline, so that their waits do not add up. There is no pause for fewer than
    STARTED_COUNT steps.
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
    """The pending slices of one event loop. They run one at a time, in order, with a pause after
    each, so that all long requests together use at most a third of the event loop.
    """

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
        # Use an empty context, because the timer serves all requests, not just the one that starts
        # it.
        asyncio.get_running_loop().call_later(PAUSE_S, self._begin_first, context=Context())

    def _begin_first(self) -> None:
        """Run the first slice in the next event loop iteration, and later ones after pauses."""
        first = self._due.popleft()
        if self._due:
            self._begin_later()
        if not first.done():  # the connection may have been closed
            first.set_result(None)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def _next_turn() -> None:
    await _turns.setdefault(asyncio.get_running_loop(), _Turns()).next()
