"""Log denied requests as `authorization_denied` events of the audit log.

Denials with the same principal, host, operation and resource type are logged once per REPEAT_S, and
LogLimit limits the total. The counters include every denial.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from penstock.base.acls import Operation, ResourceType
from penstock.base.audit import shown
from penstock.base.log_levels import AUDIT
from penstock.base.log_limit import LogLimit
from penstock.broker.network.request import RequestContext
from penstock.protocol import apis

log = structlog.get_logger(AUDIT)

REPEAT_S: Final = 10.0
_KINDS_MAX: Final = 10_000
"""Maximum number of tracked combinations. If it is exceeded, all are dropped."""


class AuditLog:
    """Logs and counts denials. now: `loop.time()`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._limit = LogLimit()
        self._logged_at: dict[tuple[str, str, int, int], float] = {}
        self._suppressed_count = 0
        self.denied: Counter[tuple[int, int]] = Counter()
        """Number of denials by operation and resource type."""

    def denied_access(
        self, ctx: RequestContext, operation: int, resource_type: int, name: str
    ) -> None:
        self.denied[operation, resource_type] += 1
        principal, host = str(ctx.connection.principal), ctx.connection.peer_host
        now, kind = self._now(), (principal, host, operation, resource_type)
        logged_at = self._logged_at.get(kind)
        if logged_at is not None and now - logged_at < REPEAT_S:
            self._suppressed_count += 1
            return
        suppressed = self._limit.take(now)
        if suppressed is None:
            return
        if len(self._logged_at) >= _KINDS_MAX:
            self._logged_at.clear()
        self._logged_at[kind] = now
        suppressed, self._suppressed_count = suppressed + self._suppressed_count, 0
        log.warning(
            "authorization_denied",
            principal=shown(principal),
            host=host,
            operation=Operation(operation).name,
            resource_type=ResourceType(resource_type).name,
            resource_name=shown(name),
            api=apis.APIS[ctx.api_key].name,
            client_id=shown(ctx.client_id or ""),
            suppressed_count=suppressed,
        )
