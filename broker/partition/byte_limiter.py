"""Limit the total bytes of concurrent cold reads of a broker, so that many lagging consumers cannot
exhaust its memory. A single read may exceed the limit. Reads are admitted in request order.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class ByteLimiter:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._granted_bytes = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncGenerator[None]:
        """Wait, without a timeout, until this many bytes are free."""
        wanted = min(size_bytes, self._limit_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((wanted, turn))
        self._grant()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._granted_bytes -= wanted
            self._grant()

    def _grant(self) -> None:
        while self._queue:
            wanted, turn = self._queue[0]
            if not turn.cancelled():
                if self._granted_bytes + wanted > self._limit_bytes:
                    return
                self._granted_bytes += wanted
                turn.set_result(None)
            self._queue.popleft()
