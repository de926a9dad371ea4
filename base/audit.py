"""Write the changes of administrators to the audit log, as events `admin_change`.

What clients chose is written with its control characters escaped and at a limited length, so that
nothing can pass for another line. Limits: a line has up to RESOURCES_PER_LINE_MAX resources; a
principal gets LINES_MAX lines at once, then one in INTERVAL_S, and its next line has the number of
those that were suppressed. So no principal can fill a disk, or hide what others change.
The logger has no level: who may change the levels of loggers cannot hide its lines
(docs/design/authorization.md).
Must not: decide anything.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from penstock.base.clock import MonotonicClock
from penstock.base.log_levels import AUDIT
from penstock.base.log_limit import LogLimit
from penstock.base.printable import printable

log = structlog.get_logger(AUDIT)

SHOWN_CHARS_MAX: Final = 256
RESOURCES_PER_LINE_MAX: Final = 20
LINES_MAX: Final = 1_000
INTERVAL_S: Final = 0.1
_PRINCIPALS_MAX: Final = 1_000
"""Principals whose lines are counted; then all are forgotten."""


class ChangeLog:
    """now: in seconds."""

    def __init__(self, now: MonotonicClock) -> None:
        self._now = now
        self._limits: dict[str, LogLimit] = {}

    def write(
        self, change: str, resources: Sequence[str], *, principal: str, host: str, **about: str
    ) -> None:
        """Log what a principal has changed, for example `acls_added`, with the resources. about:
        other fields of the line.
        """
        for at in range(0, len(resources), RESOURCES_PER_LINE_MAX):
            suppressed_count = self._limit_of(principal).take(self._now())
            if suppressed_count is not None:
                log.info(
                    "admin_change",
                    change=change,
                    principal=shown(principal),
                    host=host,
                    resources=[shown(text) for text in resources[at : at + RESOURCES_PER_LINE_MAX]],
                    suppressed_count=suppressed_count,
                    **{name: shown(text) for name, text in about.items()},
                )

    def _limit_of(self, principal: str) -> LogLimit:
        found = self._limits.get(principal)
        if found is None:
            if len(self._limits) >= _PRINCIPALS_MAX:
                self._limits.clear()
            found = LogLimit(burst_count=LINES_MAX, interval_s=INTERVAL_S)
            self._limits[principal] = found
        return found


def shown(text: str) -> str:
    """Return a text of a client as logs show it: no control characters, and not too long."""
    short = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
    return printable(short)
