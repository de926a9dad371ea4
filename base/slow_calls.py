"""Report the first slow call of each store, for commands that a user waits for.

Must not import a backend.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SLOW_S: Final = 2.0
_reports: Final[list[Callable[[str], None]]] = []


def report_slow_calls(report: Callable[[str], None]) -> None:
    """Call `report` with the URL of each store of this process, without secrets, once a call has
    taken SLOW_S. It is called in the event loop of the store. Applies to stores opened later.
    """
    _reports[:] = [report]


@dataclass(slots=True)
class SlowCalls:
    """The slow calls of one store. store: its URL without secrets."""

    store: str
    report: Callable[[str], None]
    is_reported: bool = False

    def __call__(self) -> None:
        if not self.is_reported:
            self.is_reported = True
            self.report(self.store)


def slow_calls_of(store: str) -> SlowCalls | None:
    """Return None if this process does not report slow calls."""
    return SlowCalls(store, _reports[0]) if _reports else None
