"""Write administrative changes to the audit log, as `admin_change` events. See
docs/design/authorization.md.

The logger has no level, so that users who may change log levels cannot hide its entries.
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
"""Maximum number of principals whose entries are counted; above it, all counts are dropped."""


class ChangeLog:
    """Writes audit entries with up to RESOURCES_PER_LINE_MAX resources each. A principal may cause
    LINES_MAX entries at once, then one per INTERVAL_S with the number of suppressed entries, so
    that no principal can fill a disk or hide the changes of others.

    now: returns the time in seconds.
    """

    def __init__(self, now: MonotonicClock) -> None:
        self._now = now
        self._limits: dict[str, LogLimit] = {}

    def write(
        self, change: str, resources: Sequence[str], *, principal: str, host: str, **about: str
    ) -> None:
        """Log the changes made by a principal, for example `acls_added`, with the resources. about:
        other fields of the entry.
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
    """Return a client-chosen text for logs, without control characters and truncated if too
    long.
    """
    short = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
    return printable(short)
