"""Let requests that create or delete many partitions take turns at the controller.

A chunk of CHUNK_PARTITIONS partitions keeps the controller busy for up to 0.1 s, then each broker
that applies it. The next chunk, of any request, begins when this broker has applied the last one,
so that controller and broker do not work on such changes at the same time.
Invariants: a broker has at most one chunk of more than FEW_PARTITIONS at the controller. Smaller
changes do not wait.
Must not: wait beyond the deadline of a request.
Source: docs/design/fairness.md.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

CHUNK_PARTITIONS: Final = 500
"""Partitions that the controller creates or deletes in one step. Ten thousand in one step take it a
second, in which no broker reaches it.
"""

FEW_PARTITIONS: Final = 50
"""A change of so many is a tenth of a chunk, and should not wait for whole ones."""

_T = TypeVar("_T")


class PartitionTurns:
    """The turns of one broker."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, partition_count: int, deadline: float) -> AsyncGenerator[float]:
        """Wait for a turn. Yield the seconds that are left. deadline: by the clock of the event
        loop. Raises TimeoutError.
        """
        now = asyncio.get_running_loop().time
        if partition_count <= FEW_PARTITIONS:
            yield deadline - now()
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._busy.acquire()
        except TimeoutError:
            raise TimeoutError(
                "other requests to create or delete partitions were first: repeat the request"
            ) from None
        try:
            yield deadline - now()
        finally:
            self._busy.release()


def chunks(items: Iterable[_T], partition_count: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yield the items in lists of at most CHUNK_PARTITIONS partitions, or of one item."""
    chunk: list[_T] = []
    count = 0
    for item in items:
        added_count = max(1, partition_count(item))
        if chunk and count + added_count > CHUNK_PARTITIONS:
            yield chunk
            chunk, count = [], 0
        chunk.append(item)
        count += added_count
    if chunk:
        yield chunk
