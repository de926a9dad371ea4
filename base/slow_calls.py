"""Report the first slow call of each server, for commands that a user waits for."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

SLOW_S: Final = 2.0
reports: Final[list[Callable[[str], None]]] = []


def report_slow_calls(report: Callable[[str], None]) -> None:
    """Call `report` with the name of each server used by this process, once a call has taken
    SLOW_S. It is called in the event loop of the caller or in a thread. This applies to servers
    that are used later.
    """
    reports[:] = [report]


@dataclass(slots=True)
class SlowCalls:
    """The slow calls of one server. server: its name with its URL, without secrets."""

    server: str
    report: Callable[[str], None]
    is_reported: bool = False

    def __call__(self) -> None:
        if not self.is_reported:
            self.is_reported = True
            self.report(self.server)


def slow_calls_of(server: str) -> SlowCalls | None:
    """Return an object that reports slow calls of a server, or None if this process does not report
    any.
    """
    return SlowCalls(server, reports[0]) if reports else None


@contextmanager
def watched(calls: SlowCalls | None) -> Generator[None]:
    """Report the block as a slow call if it takes SLOW_S."""
    if calls is None:
        yield
        return
    timer = threading.Timer(SLOW_S, calls)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
