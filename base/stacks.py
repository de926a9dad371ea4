"""Dump the stacks of threads and asyncio tasks to stderr on SIGQUIT, like a JVM.

Threads are dumped even if the event loop hangs (faulthandler does not need the interpreter). Task
dumps require a running loop, and show which tasks are stuck.
"""

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Iterator
from typing import Any


def dump_stacks_on_quit(loop: asyncio.AbstractEventLoop) -> None:
    """Install the signal handlers. Call this in the main thread.

    The order matters: faulthandler passes the signal on to the previous handler, which must be the
    handler of the event loop.
    """
    loop.add_signal_handler(signal.SIGQUIT, _dump_tasks)
    faulthandler.register(signal.SIGQUIT, chain=True)


def _dump_tasks() -> None:
    lines: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        lines += [f"task {task.get_name()}:", *(f"  {place}" for place in _places(task.get_coro()))]
    sys.stderr.write("\n".join((*lines, "")))
    sys.stderr.flush()


def _places(awaited: object) -> Iterator[str]:
    """Yield the code positions from the task's own coroutine down to the innermost awaitable."""
    while awaited is not None:
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        yield (
            f"{awaited!r:.120}"
            if frame is None
            else f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        )
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(of: object, *names: str) -> Any:  # noqa: ANN401 - coroutines, generators and their frames have no common type
    """Return the first of these attributes that exists and is not None."""
    return next((found for name in names if (found := getattr(of, name, None)) is not None), None)
