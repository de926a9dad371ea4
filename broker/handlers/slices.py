"""Go through what a request names, with turns for the event loop in between.

A request of a megabyte names a hundred thousand things. Each is looked up in microseconds, and all
of them together would stop heartbeats and other clients for seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from itertools import islice
from typing import Final, TypeVar

SLICE_COUNT: Final = 500
"""Things looked up between two turns of the event loop: about 10 ms."""

_T = TypeVar("_T")


async def sliced(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % SLICE_COUNT == 0:
            await asyncio.sleep(0)


async def listed(items: Iterable[_T]) -> list[_T]:
    """Return the items, which are made one by one: pass a generator."""
    found: list[_T] = []
    left = iter(items)
    while some := list(islice(left, SLICE_COUNT)):
        found += some
        if len(some) == SLICE_COUNT:
            await asyncio.sleep(0)
    return found


async def each_once(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items, which are hashable, without repetitions."""
    async for item in sliced(dict.fromkeys(items)):
        yield item


async def gathered(steps: Iterable[Awaitable[_T]]) -> list[_T]:
    """Return the results of all steps, of which SLICE_COUNT run at the same time. Steps that wait
    share a deadline, which is a point in time: then waits do not add up.
    """
    found: list[_T] = []
    left = iter(steps)
    while some := list(islice(left, SLICE_COUNT)):
        found += await asyncio.gather(*some)
        await asyncio.sleep(0)
    return found
