"""Run blocking calls in threads that do not keep the process alive, for calls that may hang.

`ThreadPoolExecutor` waits for its threads when the interpreter exits, so a hung file system would
prevent a node from stopping.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

_T = TypeVar("_T")


class PoolFull(Exception):
    """Raised if too many calls wait for a thread."""


class DaemonPool:
    """At most `threads_max` daemon threads, which are started on demand, and at most `waiting_max`
    calls that wait for one.
    """

    def __init__(self, name: str, *, threads_max: int, waiting_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._waiting_max = waiting_max
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = Lock()
        self._thread_count = 0
        self._pending_count = 0
        """Number of waiting and running calls."""

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call. If the caller is cancelled, a running call continues, while
        a waiting call is dropped. Raises PoolFull.
        """
        done: Future[_T] = Future()

        def in_thread() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
                done.set_exception(error)
            else:
                done.set_result(result)

        self._start(in_thread)
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """End idle threads immediately, and busy ones after their calls. Does not wait."""
        with self._lock:
            for _ in range(self._thread_count):
                self._calls.put(None)

    def _start(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self._pending_count >= self._threads_max + self._waiting_max:
                raise PoolFull(f"{self._pending_count} calls to {self._name} are pending")
            self._pending_count += 1
            is_new = self._thread_count < min(self._pending_count, self._threads_max)
            self._thread_count += is_new
        self._calls.put(call)
        if is_new:
            Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._pending_count -= 1
