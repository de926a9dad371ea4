"""Broker sessions: one per (node, node epoch), kept alive by heartbeats on the Follow stream. Pure;
times are in milliseconds. The caller must fence expired brokers.
"""

from dataclasses import dataclass
from typing import Literal

from penstock.base.ids import NodeEpoch, NodeId
from penstock.controller.api.load_messages import BrokerSession


@dataclass(slots=True)
class _Session:
    node_epoch: NodeEpoch
    deadline_ms: int
    heard_ms: int | None = None
    """Time of the last heartbeat, or None."""
    stream: int | None = None
    """Number of the Follow stream that carries the session, or None if the stream broke or has not
    been opened yet.
    """
    attempt: int = 0
    """The follower's own number for the last stream."""
    broken: bool = False
    ended: bool = False

    @property
    def state(self) -> Literal["open", "awaited", "broken", "over"]:
        if self.ended:
            return "over"
        if self.broken:
            return "broken"
        return "awaited" if self.stream is None else "open"


@dataclass(frozen=True, slots=True)
class SessionEnded:
    node_id: NodeId
    node_epoch: NodeEpoch
    reason: str


class Sessions:
    """All sessions of the active controller. `now_ms` is monotonic.

    A session ends only in `expired`, at the earliest `grace_ms` after its stream broke or
    `timeout_ms` after its last heartbeat, and is never resumed. Heartbeats that arrive while the
    fence is being committed are ignored. A registration does not open a session if its reply is
    repeated from the cache after the fence. A node that has registered, or that was registered when
    a new leader started, initially has the full timeout. Time in which this process was not running
    is not counted.
    """

    def __init__(self, *, timeout_ms: int, grace_ms: int, lag_limit_ms: int) -> None:
        assert 0 < grace_ms <= timeout_ms, f"grace {grace_ms} ms, timeout {timeout_ms} ms"
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._lag_limit_ms = lag_limit_ms
        self._sessions: dict[NodeId, _Session] = {}
        self._over: dict[NodeId, NodeEpoch] = {}
        """The last epoch of each node whose session has ended."""
        self._next_stream = 0
        self._next_tick_ms: int | None = None

    def registered(self, node_id: NodeId, node_epoch: NodeEpoch, now_ms: int) -> None:
        """Grant a registered node the full timeout to open its stream. Idempotent."""
        if node_epoch <= self._over.get(node_id, -1):
            return
        session = self._sessions.get(node_id)
        if session is None or session.node_epoch < node_epoch:
            self._sessions[node_id] = _Session(node_epoch, now_ms + self._timeout_ms)

    def removed(self, node_id: NodeId, node_epoch: NodeEpoch) -> None:
        """Remove the session of an incarnation that was fenced or unregistered, but not that of a
        newer one.
        """
        self._over[node_id] = max(node_epoch, self._over.get(node_id, node_epoch))
        session = self._sessions.get(node_id)
        if session is not None and session.node_epoch == node_epoch:
            del self._sessions[node_id]

    def is_overtaken(self, node_id: NodeId, node_epoch: NodeEpoch, attempt: int) -> bool:
        """Return whether a later stream of the follower was opened. If so, the follower has
        abandoned this stream, and the session must stay with the later one.
        """
        session = self._current(node_id, node_epoch)
        return session is not None and attempt < session.attempt

    def opened(
        self, node_id: NodeId, node_epoch: NodeEpoch, now_ms: int, attempt: int = 0
    ) -> int | None:
        """Record that a Follow stream was opened, which replaces the previous one. Return its
        number, or None if this (node, epoch) has no session. Check `is_overtaken` first.
        """
        session = self._current(node_id, node_epoch)
        if session is None:
            return None
        self._next_stream += 1
        session.stream, session.attempt = self._next_stream, attempt
        session.broken = False
        session.heard_ms = now_ms
        session.deadline_ms = now_ms + self._timeout_ms
        return session.stream

    def heard(self, node_id: NodeId, node_epoch: NodeEpoch, stream: int, now_ms: int) -> bool:
        """Record a heartbeat. Return False if the session has ended, or another stream carries
        it.
        """
        session = self._current(node_id, node_epoch)
        if session is None or session.stream != stream:
            return False
        session.heard_ms = now_ms
        session.deadline_ms = max(session.deadline_ms, now_ms + self._timeout_ms)
        return True

    def broken(self, node_id: NodeId, node_epoch: NodeEpoch, stream: int, now_ms: int) -> None:
        """Record that a stream ended. If the stream carried the session, the grace period starts.
        It does not extend the timeout.
        """
        session = self._current(node_id, node_epoch)
        if session is not None and session.stream == stream:
            session.stream = None
            session.broken = True
            session.deadline_ms = min(session.deadline_ms, now_ms + self._grace_ms)

    def expired(self, now_ms: int, interval_ms: int) -> list[SessionEnded]:
        """End expired sessions, and return them on every tick until `removed` is called.

        interval_ms: planned time until the next tick. If this tick is late by more than the lag
        limit, heartbeats may not have been read yet, so no session ends, and all timeouts restart.
        """
        late_ms = 0 if self._next_tick_ms is None else now_ms - self._next_tick_ms
        self._next_tick_ms = now_ms + interval_ms
        if late_ms > self._lag_limit_ms:
            for session in self._sessions.values():
                session.deadline_ms = now_ms + self._timeout_ms
        ended: list[SessionEnded] = []
        for node_id, session in sorted(self._sessions.items()):
            session.ended = session.ended or session.deadline_ms <= now_ms
            if session.ended:
                ended.append(
                    SessionEnded(
                        node_id,
                        session.node_epoch,
                        "its metadata stream broke" if session.broken else "it fell silent",
                    )
                )
        return ended

    def next_end_in_ms(self, now_ms: int, longest_ms: int) -> int:
        """Return the time until the next session expires, from 1 to `longest_ms`."""
        deadlines = [item.deadline_ms for item in self._sessions.values() if not item.ended]
        next_ms = min(deadlines, default=now_ms + longest_ms) - now_ms
        return longest_ms if next_ms <= 0 else min(next_ms, longest_ms)

    def alive(self) -> frozenset[NodeId]:
        """Return the nodes that may receive partitions, because their session has not ended and its
        stream is not broken.
        """
        return frozenset(
            node_id
            for node_id, session in self._sessions.items()
            if not session.ended and not session.broken
        )

    def describe(self, node_id: NodeId, now_ms: int) -> BrokerSession | None:
        """Describe the session of a node for operators, or return None if the node has none."""
        session = self._sessions.get(node_id)
        if session is None:
            return None
        return BrokerSession(
            state=session.state,
            heartbeat_age_ms=None if session.heard_ms is None else now_ms - session.heard_ms,
            ends_in_ms=max(0, session.deadline_ms - now_ms),
        )

    def is_replaced(self, node_id: NodeId, node_epoch: NodeEpoch) -> bool:
        """Return whether a newer incarnation of this node has registered."""
        session = self._sessions.get(node_id)
        newest = -1 if session is None else session.node_epoch
        return max(newest, self._over.get(node_id, -1)) > node_epoch

    def is_current(self, node_id: NodeId, node_epoch: NodeEpoch) -> bool:
        """Return whether this incarnation has a session."""
        return self._current(node_id, node_epoch) is not None

    def _current(self, node_id: NodeId, node_epoch: NodeEpoch) -> _Session | None:
        session = self._sessions.get(node_id)
        return (
            session
            if session is not None and session.node_epoch == node_epoch and not session.ended
            else None
        )
