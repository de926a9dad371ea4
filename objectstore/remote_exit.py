"""Let obstore's threads finish before the interpreter exits.

If a Rust thread needs the GIL to drop a future while Python finalizes, pthread_exit(3) ends the
thread and Rust aborts the process (exit code -6). The exit therefore waits for all futures, usually
1 to 2 ms and at most 1 s. Source: pyo3-async-runtimes issue 40; CPython `take_gil`.
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
"""Polling interval. Sleeping releases the GIL, which the thread of the last future may still
need.
"""

_futures: Final[WeakSet[Future[Any]]] = WeakSet()


def until_exit(request: Awaitable[_T]) -> Awaitable[_T]:
    """Return the request, an obstore future, after registering it so that the exit of the process
    waits for its thread.
    """
    _futures.add(cast("Future[Any]", request))
    return request


@atexit.register
def _wait_for_threads() -> None:
    time.sleep(_POLL_S)
    if _futures:
        gc.collect()  # an exception that ended the loop holds the last future in a reference cycle
    deadline = time.monotonic() + _WAIT_MAX_S
    while _futures and time.monotonic() < deadline:
        time.sleep(_POLL_S)
