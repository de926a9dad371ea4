"""Log what clients may not do, and what they change of the security of the cluster.

Two structured events: `authorization_denied` and `admin_change`. What clients chose is written with
its control characters escaped and at a limited length, so that nothing can pass for another line.
Limits: a denial of the same principal, host, operation and resource type is logged once in
REPEAT_S; in all, LogLimit applies to denials. Changes are rare, and all of them are logged, up to
RESOURCES_PER_LINE_MAX in a line. Counters count every denial.
Their logger has no level: who may change the levels of loggers cannot hide them (ADR 0068).
Must not: decide anything.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from base.acls import Operation, PatternType, Permission, ResourceType
from base.log_levels import AUDIT
from base.printable import printable
from broker.network.log_limit import LogLimit
from broker.network.request import RequestContext
from broker.wire import apis
from controller.metadata.records import AclEntry

log = structlog.get_logger(AUDIT)

REPEAT_S: Final = 10.0
SHOWN_CHARS_MAX: Final = 256
RESOURCES_PER_LINE_MAX: Final = 20
_KINDS_MAX: Final = 10_000
"""Kinds of denials whose time is remembered; then all are forgotten."""


class AuditLog:
    """now: `loop.time()`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._limit = LogLimit()
        self._logged_at: dict[tuple[str, str, int, int], float] = {}
        self._suppressed_count = 0
        self.denied: Counter[tuple[int, int]] = Counter()
        """Denials by operation and resource type."""

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


def log_change(ctx: RequestContext, change: str, resources: Sequence[str]) -> None:
    """Log what a client has changed, for example `acls_added`, with all its resources."""
    for at in range(0, len(resources), RESOURCES_PER_LINE_MAX):
        log.info(
            "admin_change",
            change=change,
            principal=shown(str(ctx.connection.principal)),
            host=ctx.connection.peer_host,
            api=apis.APIS[ctx.api_key].name,
            resources=[shown(text) for text in resources[at : at + RESOURCES_PER_LINE_MAX]],
            client_id=shown(ctx.client_id or ""),
        )


def acl_text(acl: AclEntry) -> str:
    """Describe an ACL in one line, as a person would say it."""
    return (
        f"{Permission(acl.permission).name} {acl.principal} {Operation(acl.operation).name}"
        f" from {acl.host} on {ResourceType(acl.resource_type).name}"
        f" {PatternType(acl.pattern_type).name} {acl.resource_name}"
    )


def shown(text: str) -> str:
    """Return a text of a client as logs show it: no control characters, and not too long."""
    short = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
    return printable(short)
