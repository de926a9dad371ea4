"""Connection admission (KIP-402, KIP-612): delay new connections until their listener has room.

The broker accepts a delayed connection but does not read from it, as if it were still in the listen
backlog.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.base.clock import MonotonicClock
from penstock.base.connections_by_address import ConnectionsByAddress
from penstock.broker.quotas.connections import Connections, ConnectionSettings

HELD_MAX: Final = 1_024
"""Maximum number of delayed connections per listener. Unlike connections in the backlog, each uses
a file descriptor.
"""

_UNAUTHENTICATED: Final = "too many unauthenticated connections (max.unauthenticated.connections)"
_EVICTED_TEXT: Final = "unauthenticated, and another address needs the connection (max.connections)"
_FOR_BROKER: Final = "a broker needs the connection (max.connections)"
_TOO_MANY_WAIT: Final = "too many connections wait (max.connections)"


class Deadline(Protocol):
    """A scheduled call, like `asyncio.TimerHandle`."""

    def when(self) -> float: ...

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Deadline]
"""Calls a function after a number of seconds, like `loop.call_later`."""


class NewConnection(Protocol):
    """A connection, as seen by the admission."""

    listener: str
    peer_host: str
    last_request_at: float

    def admitted(self) -> None:
        """Start to read."""
        ...

    def held(self) -> None:
        """Stop reading until the connection is admitted or closed."""
        ...

    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Queue:
    waiting: deque[NewConnection] = field(default_factory=deque[NewConnection])
    by_address: ConnectionsByAddress[NewConnection] = field(
        default_factory=ConnectionsByAddress[NewConnection]
    )
    """The delayed connections, by address."""
    is_counted: bool = False
    """Whether the first delayed connection has been counted for the rate limits."""
    timer: Deadline | None = None
    """Set while the rate limit is exceeded, so that no connection is admitted."""


class Admission:
    """Admits connections to all listeners of one broker, in order of arrival.

    When a listener reaches its limit of unauthenticated connections, the oldest unauthenticated
    connection of the address with the most such connections is closed. When there is no room,
    unauthenticated connections are also closed in favor of new connections from addresses with
    fewer of them.
    """

    def __init__(
        self, connections: Connections, now: MonotonicClock, call_later: CallLater
    ) -> None:
        self.connections = connections
        self.refused_count = 0
        """Number of connections closed because of per-address limits."""
        self._now = now
        self._call_later = call_later
        self._queues: dict[str, _Queue] = {}
        self._inside: dict[NewConnection, None] = {}
        self._unauthenticated: dict[str, ConnectionsByAddress[NewConnection]] = defaultdict(
            ConnectionsByAddress
        )
        """Unauthenticated connections by listener, so that a flood on one listener does not affect
        others.
        """
        self._closing: dict[NewConnection, Deadline] = {}

    @property
    def held_count(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    @property
    def unauthenticated_count(self) -> int:
        return sum(map(len, self._unauthenticated.values()))

    def configure(self, settings: ConnectionSettings) -> None:
        self.connections.settings = settings
        self._admit_all()

    def arrive(self, arrival: NewConnection) -> None:
        """Admit the connection, delay it, or close it."""
        queue = self._queues.setdefault(arrival.listener, _Queue())
        if self._take_place(arrival, queue):
            return
        if len(queue.waiting) >= HELD_MAX:
            if queue.by_address.count_max <= queue.by_address.count(arrival.peer_host) + 1:
                arrival.close(_TOO_MANY_WAIT)
                return
            oldest = queue.by_address.pop()
            self._stop_waiting(oldest, queue)
            oldest.close(_TOO_MANY_WAIT)
        queue.waiting.append(arrival)
        queue.by_address.add(arrival, arrival.peer_host)
        self._admit(arrival.listener, queue)
        if arrival in queue.by_address or arrival in self._closing:
            arrival.held()

    def authenticated(self, arrival: NewConnection) -> None:
        """Record that the client is authenticated, so that its connection is not closed in favor of
        others.
        """
        self._unauthenticated[arrival.listener].discard(arrival)

    def gone(self, arrival: NewConnection) -> None:
        """Record that the connection has closed."""
        timer = self._closing.pop(arrival, None)
        if timer is not None:
            timer.cancel()
        queue = self._queues.get(arrival.listener)
        if arrival in self._inside:
            del self._inside[arrival]
            self._unauthenticated[arrival.listener].discard(arrival)
            self.connections.leave(arrival.listener, arrival.peer_host)
            self._admit_all()
        elif queue is not None and arrival in queue.by_address:
            self._stop_waiting(arrival, queue)
            self._admit(arrival.listener, queue)

    def close(self) -> None:
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()
        for timer in self._closing.values():
            timer.cancel()

    def _stop_waiting(self, arrival: NewConnection, queue: _Queue) -> None:
        if queue.waiting[0] is arrival:
            queue.is_counted = False
        queue.waiting.remove(arrival)
        queue.by_address.discard(arrival)

    def _take_place(self, arrival: NewConnection, queue: _Queue) -> bool:
        """If there is no room, make room by closing an unauthenticated connection whose address has
        more of them, and admit the new connection. Return whether it was admitted.
        """
        listener = arrival.listener
        if queue.timer is not None or self.connections.has_room(listener):
            return False
        crowd = self._unauthenticated[listener]
        if self.connections.has_room_of_its_own(listener):
            crowd = self._largest_crowd()
        if crowd.count_max <= crowd.count(arrival.peer_host) + 1:
            return False
        crowd.pop().close(_EVICTED_TEXT)
        now_ms = int(self._now() * 1_000)
        wait_ms = self.connections.arrived(listener, now_ms)
        if wait_ms:
            self._block(listener, queue, wait_ms)
        self._enter(arrival, now_ms)
        if arrival in self._closing:
            arrival.held()
        return True

    def _largest_crowd(self) -> ConnectionsByAddress[NewConnection]:
        """Return the largest set of unauthenticated connections of a single address on one
        listener.
        """
        protected = self.connections.settings.protected
        return max(
            self._unauthenticated.items(),
            key=lambda item: (item[1].count_max, item[0] != protected),
        )[1]

    def _admit_all(self) -> None:
        for listener, queue in self._queues.items():
            if queue.waiting:
                self._admit(listener, queue)

    def _admit(self, listener: str, queue: _Queue) -> None:
        connections = self.connections
        while queue.waiting:
            now_ms = int(self._now() * 1_000)
            if not queue.is_counted:
                wait_ms = connections.arrived(listener, now_ms)
                queue.is_counted = True
                if wait_ms:
                    self._block(listener, queue, wait_ms)
            if queue.timer is not None or not connections.has_room(listener):
                return
            arrival = queue.waiting.popleft()
            queue.by_address.discard(arrival)
            queue.is_counted = False
            self._enter(arrival, now_ms)

    def _block(self, listener: str, queue: _Queue, wait_ms: int) -> None:
        def end() -> None:
            queue.timer = None
            self._admit(listener, queue)

        queue.timer = self._call_later(wait_ms / 1_000, end)

    def _enter(self, arrival: NewConnection, now_ms: int) -> None:
        refusal = self.connections.enter(arrival.listener, arrival.peer_host, now_ms)
        if refusal is None:
            self._inside[arrival] = None
            crowd = self._unauthenticated[arrival.listener]
            settings = self.connections.settings
            if arrival.listener == settings.protected and self.connections.is_over:
                self._close_for_broker(crowd)
            crowd.add(arrival, arrival.peer_host)
            arrival.admitted()
            if len(crowd) > settings.unauthenticated:
                crowd.pop().close(_UNAUTHENTICATED)
            return
        self.refused_count += 1
        if not refusal.after_ms:
            arrival.close(refusal.reason)
            return

        def close() -> None:
            self._closing.pop(arrival, None)
            arrival.close(refusal.reason)

        self._closing[arrival] = self._call_later(refusal.after_ms / 1_000, close)

    def _close_for_broker(self, of_brokers: ConnectionsByAddress[NewConnection]) -> None:
        """Close an unauthenticated connection, or the client connection that has been idle longest,
        to make room for a broker.
        """
        crowd = self._largest_crowd()
        if crowd.count_max > 1 or (crowd and crowd is not of_brokers):
            crowd.pop().close(_FOR_BROKER)
            return
        protected = self.connections.settings.protected
        others = [item for item in self._inside if item.listener != protected]
        if others:
            min(others, key=lambda item: item.last_request_at).close(_FOR_BROKER)
