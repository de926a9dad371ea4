"""Serialize requests that create or delete many partitions. See docs/design/fairness.md."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

CHUNK_PARTITIONS: Final = 500
"""Number of partitions that the controller creates or deletes in one step, which takes up to 0.1 s.
Creating ten thousand at once would block it for a second.
"""

FEW_PARTITIONS: Final = 50
"""Changes of at most this many partitions take a tenth as long as a chunk, and do not wait for
chunks.
"""

_T = TypeVar("_T")


class PartitionTurns:
    """Serializes the requests of one broker, which sends the controller at most one chunk of more
    than FEW_PARTITIONS at a time.

    The next chunk (of any request) is sent only after this broker has applied the previous one to
    its image, so that the controller and the broker do not process such changes at the same time.
    """

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, partition_count: int, deadline: float) -> AsyncGenerator[float]:
        """Wait for a turn, and yield the remaining seconds. deadline: event loop time. Raises
        TimeoutError.
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
                "waiting for other requests that create or delete partitions: retry the request"
            ) from None
        try:
            yield deadline - now()
        finally:
            self._busy.release()


def chunks(items: Iterable[_T], partition_count: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Split the items into lists of at most CHUNK_PARTITIONS partitions in total. A larger item is
    returned alone.
    """
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
