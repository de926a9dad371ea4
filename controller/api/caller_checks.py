"""Check callers before a controller's handlers run, with the rules of `controller.api.callers`.

With TLS, rejections have the status UNAUTHENTICATED, because a follower interprets
PERMISSION_DENIED as a fence. Without TLS, every caller may call every method.
"""

import time
from typing import Final

import structlog

from penstock.base.clock import MonotonicClock
from penstock.base.log_levels import AUDIT
from penstock.controller.api import callers
from penstock.controller.api.callers import Caller, CallerRole, NameRules
from penstock.controller.api.handshakes import HandshakeCounts
from penstock.controller.api.transport import (
    CallContext,
    StatusCode,
    StreamContext,
    StreamHandler,
    UnaryContext,
    UnaryHandler,
    host_of,
    names_in_certificate,
)

_log = structlog.get_logger(AUDIT)

LOG_INTERVAL_S: Final = 60.0
_LOGGED_COUNT_MAX: Final = 1_000
"""Maximum number of distinct rejections that are tracked in order to log each of them at most once
a minute.
"""


class CallerRefused(Exception):
    """Raised if the caller's certificate does not allow the request."""


class Gate:
    """Checks callers. Rejections are counted, and each is logged at most once a minute in the audit
    log. rules: the certificate names of each role; None without TLS.
    """

    def __init__(
        self, rules: NameRules | None = None, *, now: MonotonicClock = time.monotonic
    ) -> None:
        self._rules = rules
        self._now = now
        self._logged_at: dict[tuple[tuple[str, ...], str], float] = {}
        self.handshakes = HandshakeCounts()
        self.refused_count = 0

    def unary(self, method: str, handler: UnaryHandler) -> UnaryHandler:
        """Wrap the handler with checks. Raises KeyError for a method without an entry in
        METHODS.
        """
        assert callers.METHODS[method], method
        if self._rules is None:
            return handler

        async def checked(data: bytes, context: UnaryContext) -> bytes:
            await self._pass(method, context)
            return await handler(data, context)

        return checked

    def stream(self, method: str, handler: StreamHandler) -> StreamHandler:
        """Wrap the handler with checks. Raises KeyError for a method without an entry in
        METHODS.
        """
        assert callers.METHODS[method], method
        if self._rules is None:
            return handler

        async def checked(requests: object, context: StreamContext) -> None:
            await self._pass(method, context)
            await handler(requests, context)

        return checked

    def check_request(self, request: object, context: CallContext) -> None:
        """Check the node id in a request that a node sends for itself. Raises CallerRefused."""
        if self._rules is not None:
            caller = self._identified(context)
            self._refuse(
                callers.request_refusal(caller, request), caller, type(request).__name__, context
            )

    def check_node(self, method: str, role: CallerRole, node_id: int, context: CallContext) -> None:
        """Check that the caller may act as this node. Raises CallerRefused."""
        if self._rules is not None:
            caller = self._identified(context)
            self._refuse(callers.id_refusal(caller, role, node_id), caller, method, context)

    def caller(self, context: CallContext) -> Caller | None:
        """Return the caller, or None without TLS."""
        return None if self._rules is None else self._identified(context)

    async def _pass(self, method: str, context: CallContext) -> None:
        self.handshakes.called(context.peer())
        caller = self._identified(context)
        try:
            self._refuse(callers.method_refusal(caller, method), caller, method, context)
        except CallerRefused as error:
            await context.abort(StatusCode.UNAUTHENTICATED, str(error))
            raise

    def _identified(self, context: CallContext) -> Caller:
        assert self._rules is not None
        return callers.identify(names_in_certificate(context), self._rules)

    def _refuse(self, why: str, caller: Caller, method: str, context: CallContext) -> None:
        if not why:
            return
        self.refused_count += 1
        key, now = (caller.names, method), self._now()
        if now - self._logged_at.get(key, float("-inf")) >= LOG_INTERVAL_S:
            if len(self._logged_at) >= _LOGGED_COUNT_MAX:
                self._logged_at.clear()
            self._logged_at[key] = now
            _log.warning("caller_rejected", method=method, host=host_of(context), reason=why)
        raise CallerRefused(why)
