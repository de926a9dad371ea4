"""Count the bytes of buffered requests, in total and per principal. Pure: callers pause and close
connections.

A principal is limited to a share of the memory, regardless of the number of its connections.
Unauthenticated clients have only the total limit.
"""

from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakValueDictionary

from penstock.base.principal import ANONYMOUS, Principal

_ALL_USED: Final = "request memory is exhausted (queued.max.request.bytes)"
_PRINCIPAL_USED: Final = (
    "the principal's request memory is exhausted (queued.max.request.principal.percent)"
)


class PausedConnection(Protocol):
    """A connection that is not being read."""

    usage: "PrincipalUsage"

    def pump(self) -> None:
        """Check again whether the connection may read."""
        ...


class PrincipalUsage:
    """The bytes of one principal. It exists as long as a connection refers to it."""

    __slots__ = ("__weakref__", "buffered_bytes", "is_limited", "waiters")

    def __init__(self, *, is_limited: bool) -> None:
        self.is_limited = is_limited
        self.buffered_bytes = 0
        """Always 0 if the principal is not limited."""
        self.waiters: dict[PausedConnection, None] = {}
        """Connections that wait until the principal is below its limit."""


class RequestMemory:
    """Counts the bytes of all connections. Above a limit, connections pause unless they are in the
    middle of a frame. Partial frames could block each other forever, so a connection in the middle
    of a frame may use up to twice the limit, and is closed above that.

    call_soon: used to resume connections later rather than inside the caller.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.buffered_bytes = 0
        self._limit_bytes = self._hard_limit_bytes = 0
        self._principal_limit_bytes = self._principal_hard_limit_bytes = 0
        self._call_soon = call_soon
        self._waiters: dict[PausedConnection, None] = {}
        self._usages: WeakValueDictionary[Principal, PrincipalUsage] = WeakValueDictionary()

    def configure(self, limit_bytes: int, principal_percent: int, request_bytes_max: int) -> None:
        """Apply new limits. A principal may always send one request of `request_bytes_max`."""
        self._limit_bytes, self._hard_limit_bytes = limit_bytes, 2 * limit_bytes
        self._principal_limit_bytes = limit_bytes * principal_percent // 100
        self._principal_hard_limit_bytes = max(2 * self._principal_limit_bytes, request_bytes_max)
        for usage in list(self._usages.values()):
            self._resume_all(usage.waiters)
        self._resume_all(self._waiters)

    def usage(self, principal: Principal) -> PrincipalUsage:
        """Return the usage of a principal. The caller must keep a reference as long as the usage is
        not 0.
        """
        usage = self._usages.get(principal)
        if usage is None:
            usage = self._usages[principal] = PrincipalUsage(is_limited=principal != ANONYMOUS)
        return usage

    def charge(self, usage: PrincipalUsage, delta_bytes: int) -> None:
        """Count added or released bytes, and resume connections that were waiting for released
        bytes.
        """
        self.buffered_bytes += delta_bytes
        if usage.is_limited:
            usage.buffered_bytes += delta_bytes
        if delta_bytes >= 0:
            return
        if usage.waiters and usage.buffered_bytes <= self._principal_limit_bytes:
            self._resume_all(usage.waiters)
        if self._waiters and self.buffered_bytes <= self._limit_bytes:
            self._resume_all(self._waiters)

    def is_full(self, usage: PrincipalUsage) -> bool:
        """Return True if this principal must not start another frame."""
        return (
            self.buffered_bytes > self._limit_bytes
            or usage.buffered_bytes > self._principal_limit_bytes
        )

    def refusal(self, usage: PrincipalUsage) -> str:
        """Return the reason why a connection in the middle of a frame must be closed, or "" if it
        may continue.
        """
        if usage.buffered_bytes > self._principal_hard_limit_bytes:
            return _PRINCIPAL_USED
        return _ALL_USED if self.buffered_bytes > self._hard_limit_bytes else ""

    def wait(self, waiter: PausedConnection) -> None:
        """Resume this connection when its principal's usage and the total are below their
        limits.
        """
        usage = waiter.usage
        if usage.buffered_bytes > self._principal_limit_bytes:
            usage.waiters[waiter] = None
        else:
            self._waiters[waiter] = None

    def forget(self, waiter: PausedConnection) -> None:
        """Forget a connection that was closed or changed its usage."""
        waiter.usage.waiters.pop(waiter, None)
        self._waiters.pop(waiter, None)

    def _resume_all(self, waiters: dict[PausedConnection, None]) -> None:
        some = list(waiters)
        waiters.clear()
        for waiter in some:
            self._call_soon(waiter.pump)
