"""Send requests to many brokers concurrently for one user: a slow broker delays the others by at
most GRACE_S, and its late response is used for the next page.

Limits: AT_ONCE brokers at a time for each request of a browser; one pending request to each broker
for each user; the last responses of KEPT_MAX pairs of user and broker.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from penstock.deploy.console.tasks import take_exception
from penstock.protocol.client.errors import KafkaFailed, NoResponse

GRACE_S: Final = 1.0
"""Maximum wait for one broker if others respond."""
AT_ONCE: Final = 4
"""Maximum number of brokers at a time. This is less than the maximum number of concurrent calls of
the console, so that other pages are served in the meantime.
"""
KEPT_MAX: Final = 1_024

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CachedResponse(Generic[_T]):
    """value: the last response. asked_at: when it was requested, by time.monotonic()."""

    value: _T
    requested_at: float


@dataclass(frozen=True, slots=True)
class ResponseSet(Generic[_K, _T]):
    """last: the last responses, including old ones. fresh: keys with a current response. refused:
    the reasons why brokers rejected the request.
    """

    last: Mapping[_K, CachedResponse[_T]]
    fresh: frozenset[_K]
    refused: Mapping[_K, KafkaFailed]


class BrokerResponses(Generic[_K, _T]):
    """The last responses by user and key. A key identifies a broker and a request."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, _K], CachedResponse[_T]] = OrderedDict()
        self._running: dict[tuple[str, _K], asyncio.Task[CachedResponse[_T]]] = {}

    def drop(self, user: str) -> None:
        """Drop all responses for a user, including pending ones."""
        for key in [key for key in self._last if key[0] == user]:
            del self._last[key]
        for key in [key for key in self._running if key[0] == user]:
            self._running.pop(key).cancel()

    async def send_request(
        self,
        user: str,
        requests: Mapping[_K, Callable[[], Awaitable[_T]]],
        *,
        waits_for_first: bool = False,
    ) -> ResponseSet[_K, _T]:
        """Send these requests, and return the last responses for the user. waits_for_first: whether
        to wait longer than GRACE_S if there are no responses. Errors other than KafkaFailed are
        raised.
        """
        gate = asyncio.Semaphore(AT_ONCE)
        tasks: dict[_K, asyncio.Task[CachedResponse[_T]]] = {}

        async def wait_for(key: _K, request: Callable[[], Awaitable[_T]]) -> None:
            async with gate:
                tasks[key] = self._begin((user, key), request)
                await asyncio.wait((tasks[key],), timeout=GRACE_S)

        await asyncio.gather(*(wait_for(key, request) for key, request in requests.items()))
        is_known = any(at == user for at, _ in self._last)
        if waits_for_first and not is_known and all(not task.done() for task in tasks.values()):
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return self._found(user, tasks)

    def _found(
        self, user: str, tasks: Mapping[_K, "asyncio.Task[CachedResponse[_T]]"]
    ) -> ResponseSet[_K, _T]:
        last = {key: response for (of, key), response in self._last.items() if of == user}
        fresh: set[_K] = set()
        refused: dict[_K, KafkaFailed] = {}
        for key, task in tasks.items():
            if not task.done() or task.cancelled():
                continue
            error = task.exception()
            if error is None:
                fresh.add(key)
                last[key] = task.result()
            elif not isinstance(error, KafkaFailed):
                raise error
            elif not isinstance(error, NoResponse):
                refused[key] = error
        return ResponseSet(last, frozenset(fresh), refused)

    def _begin(
        self, key: tuple[str, _K], request: Callable[[], Awaitable[_T]]
    ) -> "asyncio.Task[CachedResponse[_T]]":
        """Return the request that is already pending for a broker, or send a new one."""
        loop = asyncio.get_running_loop()
        running = self._running.get(key)
        if running is not None and running.get_loop() is loop:
            return running
        task = loop.create_task(_response_of(request))
        self._running[key] = task
        task.add_done_callback(lambda _: self._arrived(key, task))
        return task

    def _arrived(self, key: tuple[str, _K], task: "asyncio.Task[CachedResponse[_T]]") -> None:
        take_exception(task)
        if self._running.get(key) is not task:
            return  # The user has logged out in the meantime.
        del self._running[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._last[key] = task.result()
        self._last.move_to_end(key)
        while len(self._last) > KEPT_MAX:
            self._last.popitem(last=False)


async def _response_of(request: Callable[[], Awaitable[_T]]) -> CachedResponse[_T]:
    requested_at = time.monotonic()
    return CachedResponse(await request(), requested_at)
