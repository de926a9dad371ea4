"""Let the threads of obstore finish before Python ends.

A thread of Rust sets the result of a future, and then needs the GIL once more to drop its
references. If Python finalizes in between, it ends that thread by `pthread_exit`, and Rust answers
with abort(): exit code -6 after a command that did its work. The thread holds the future until it
is done, so the exit waits for the futures: 1 to 2 ms as a rule, 1 s at most.
Source: pyo3-async-runtimes issue 40; CPython `take_gil`.
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
"""A sleep gives the GIL away: the thread of the last future may need it once more."""

_futures: Final[WeakSet[Future[Any]]] = WeakSet()


def until_exit(request: Awaitable[_T]) -> Awaitable[_T]:
    """Return the request, a future of obstore; the exit of the process waits for its thread."""
    _futures.add(cast("Future[Any]", request))
    return request


@atexit.register
def _wait_for_threads() -> None:
    time.sleep(_POLL_S)
    if _futures:
        gc.collect()  # an exception that ends the loop keeps the last future in a cycle
    deadline = time.monotonic() + _WAIT_MAX_S
    while _futures and time.monotonic() < deadline:
        time.sleep(_POLL_S)
