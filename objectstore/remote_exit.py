"""Let threads of obstore finish before the interpreter exits.

If a Rust thread needs the GIL while Python finalizes, to drop a future, pthread_exit(3) ends it
and Rust aborts the process (exit code -6). The exit therefore waits for all futures, usually 1 to
2 ms and at most 1 s. Source: pyo3-async-runtimes issue 40; CPython `take_gil`.
"""

import atexit
import gc
import time
from asyncio import Future
from collections.abc import Awaitable
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

_T = TypeVar("_T")

_WAIT_MAX_S: Final = 1.0
_POLL_S: Final = 0.001
"""Interval of polling. Sleeping releases the GIL, which the thread of the last future may still
need.
"""

_futures: Final[WeakSet[Future[Any]]] = WeakSet()


def until_exit(request: Awaitable[_T]) -> Awaitable[_T]:
    """Return the request, a future of obstore, for whose thread the exit of the process waits."""
    _futures.add(cast("Future[Any]", request))
    return request


@atexit.register
def _wait_for_threads() -> None:
    time.sleep(_POLL_S)
    if _futures:
        gc.collect()  # an exception that ended the loop keeps the last future in a reference cycle
    deadline = time.monotonic() + _WAIT_MAX_S
    while _futures and time.monotonic() < deadline:
        time.sleep(_POLL_S)
