"""Hold new connections back until their listener may take them.

A connection that is held is accepted by the system, but nothing is read from it, as if it was still
in the backlog. It has no deadline yet.
Invariants: the connections of a listener are admitted in the order of their arrival. At most
`HELD_MAX` of a listener are held; further ones are closed.
Must not: touch a socket; the connections do.
Source: Kafka's Acceptor and `ConnectionQuotas.waitForConnectionSlot`; KIP-402, KIP-612.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.base.clock import MonotonicClock
from penstock.broker.quotas.connections import Connections, ConnectionSettings

HELD_MAX: Final = 1_024
"""How many connections of a listener wait; each has a descriptor, unlike those in the backlog."""


class Deadline(Protocol):
    """A call that is due at a time of the event loop, as `asyncio.TimerHandle`."""

    def when(self) -> float: ...

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Deadline]
"""Calls a function after so many seconds, as the event loop does."""


class NewConnection(Protocol):
    """A connection as its admission sees it."""

    listener: str
    peer_host: str
    last_request_at: float

    def admitted(self) -> None:
        """Begin to read."""
        ...

    def held(self) -> None:
        """Read nothing until it is admitted or closed."""
        ...

    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Queue:
    waiting: deque[NewConnection] = field(default_factory=deque[NewConnection])
    is_counted: bool = False
    """Whether the first one has been counted for the rates."""
    timer: Deadline | None = None
    """Set while connections come too fast and none is admitted."""


class Admission:
    """The admission of all listeners of one broker."""

    def __init__(
        self, connections: Connections, now: MonotonicClock, call_later: CallLater
    ) -> None:
        self.connections = connections
        self.refused_count = 0
        """Connections that were closed because of their address."""
        self._now = now
        self._call_later = call_later
        self._queues: dict[str, _Queue] = {}
        self._inside: dict[NewConnection, None] = {}
        self._closing: dict[NewConnection, Deadline] = {}

    @property
    def held_count(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def configure(self, settings: ConnectionSettings) -> None:
        self.connections.settings = settings
        self._admit_all()

    def arrive(self, arrival: NewConnection) -> None:
        """Admit the connection, hold it, or close it."""
        queue = self._queues.setdefault(arrival.listener, _Queue())
        if len(queue.waiting) >= HELD_MAX:
            arrival.close("too many connections wait (max.connections)")
            return
        queue.waiting.append(arrival)
        self._admit(arrival.listener, queue)
        if arrival in queue.waiting or arrival in self._closing:
            arrival.held()

    def gone(self, arrival: NewConnection) -> None:
        """Note that the connection has closed."""
        timer = self._closing.pop(arrival, None)
        if timer is not None:
            timer.cancel()
        queue = self._queues.get(arrival.listener)
        if arrival in self._inside:
            del self._inside[arrival]
            self.connections.leave(arrival.listener, arrival.peer_host)
            self._admit_all()
        elif queue is not None and arrival in queue.waiting:
            if queue.waiting[0] is arrival:
                queue.is_counted = False
            queue.waiting.remove(arrival)
            self._admit(arrival.listener, queue)

    def close(self) -> None:
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()
        for timer in self._closing.values():
            timer.cancel()

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
            arrival.admitted()
            if self.connections.is_over:
                self._close_idle(self._inside)
            return
        self.refused_count += 1
        if not refusal.after_ms:
            arrival.close(refusal.reason)
            return

        def close() -> None:
            self._closing.pop(arrival, None)
            arrival.close(refusal.reason)

        self._closing[arrival] = self._call_later(refusal.after_ms / 1_000, close)

    def _close_idle(self, inside: Iterable[NewConnection]) -> None:
        """Close the connection that was idle longest, for one of the brokers."""
        protected = self.connections.settings.protected
        others = [item for item in inside if item.listener != protected]
        if others:
            idle = min(others, key=lambda item: item.last_request_at)
            idle.close("a broker needs the connection (max.connections)")
