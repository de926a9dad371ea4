"""Decide how long a broker may trust its session, by its own clock. Pure: monotonic seconds come
in.

Invariant: The lease ends before the controller can have fenced the node for silence. Let a
heartbeat leave the broker at s and reach the controller at h >= s. The controller fences at h + T
at the earliest (T: session timeout), and acknowledges the heartbeat in its next message. The lease
runs to s + 0.85 T, counting only heartbeats that were *answered*. s + 0.85 T < h + T holds whatever
the network does and however long the process is paused, as long as the two monotonic clocks differ
by less than 15 % in rate. A process that was stopped finds its lease over when it next reads the
clock.

After a broken stream, the controller fences after a shorter grace G. The broker notices the break
at the latest when it sends its next heartbeat (at most 0.5 G later) and then continues for 0.4 G:
0.9 G < G. The controller can lift that limit, and only within that time: before it ends the stream,
it says that it stops or that it does not lead. It then no longer fences, and a controller that
becomes active gives every broker a whole timeout first, so that a restart or a change of the leader
stops no broker. After that time its fence may already be on its way, and only an answered heartbeat
helps. A leader that is cut off stops answering within the election timeout, before another can be
elected (`controller.raft.core`, check-quorum).

An address that refuses connections proves less. Usually the process is gone, but a firewall that
rejects or a forwarded port answers the same while the controller lives and fences. So there are two
ends. `until` takes a refusal for the death of the controller: the broker may acknowledge until
then, because the fence object in the WAL protects every acknowledgement in any case, and producers
do not notice that a controller was killed. `alone_until` does not: until then no other broker can
lead what this one leads, and nothing else protects its answers about the end of a log.

Limits: A network may reset the controller's end of a stream while it drops everything on the way to
the broker, including the reset. The controller then fences after G, and the broker trusts until
0.85 T that it leads alone. Its answers about ends of logs may be outdated for that time. To end the
lease after 0.9 G of silence, the controller would have to answer each heartbeat at once, and every
pause of a controller would stop the brokers.

Must not be the only protection of data: that is the WAL slot. Source: Gray & Cheriton, "Leases"
(SOSP 1989).
"""

from collections import deque

SESSION_SHARE = 0.85
GRACE_SHARE = 0.4
HEARTBEAT_SHARE = 0.5
HEARTBEAT_S_DEFAULT = 0.1
"""Heartbeat interval until the first message of the controller, which has its limits."""

SENT_COUNT_MAX = 64
"""Number of unanswered heartbeats kept; older ones would give a lease that has ended anyway."""


class Lease:
    """Hold the time until which a broker may trust its session."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, float]] = deque(maxlen=SENT_COUNT_MAX)
        self._timeout_s = 0.0
        self._grace_s = 0.0
        self._until = float("-inf")
        self._broken_until = float("inf")
        self._unsure_from = float("inf")
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the incarnation is fenced: it never gets a session again."""
        return self._ended

    @property
    def until(self) -> float:
        """Time at which the lease ends."""
        return float("-inf") if self._ended else min(self._until, self._broken_until)

    @property
    def alone_until(self) -> float:
        """Time until which no other broker can have become leader of what this one leads. Never
        later than `until`.
        """
        return min(self.until, self._unsure_from)

    @property
    def heartbeat_s_max(self) -> float:
        """Longest interval of heartbeats with which a broken stream is noticed early enough."""
        return self._grace_s * HEARTBEAT_SHARE if self._grace_s else HEARTBEAT_S_DEFAULT

    def is_alive(self, now: float) -> bool:
        return not self._ended and now < self._until and now < self._broken_until

    def stream_began(self) -> None:
        """Begin a stream: heartbeats count from 1 again. The first answered one extends
        the lease.
        """
        self._sent.clear()

    def sent(self, heartbeat: int, now: float) -> None:
        """Note a heartbeat. Call this before the heartbeat leaves."""
        self._sent.append((heartbeat, now))

    def set_limits(self, timeout_ms: int, grace_ms: int) -> None:
        """Set the controller's limits, which come before or with the first answer."""
        self._timeout_s = timeout_ms / 1_000
        self._grace_s = grace_ms / 1_000

    def answered(self, heartbeat: int) -> None:
        """Extend the lease: the controller received this heartbeat of the current stream."""
        while self._sent and self._sent[0][0] <= heartbeat:
            _, sent_at = self._sent.popleft()
            self._until = max(self._until, sent_at + self._timeout_s * SESSION_SHARE)
            self._broken_until = self._unsure_from = float("inf")

    def stream_broke(
        self, now: float, *, nobody_fences: bool = False, refused: bool = False
    ) -> None:
        """Shorten the lease, because the stream ended or could not be opened again.

        nobody_fences: the controller said that it no longer fences. refused: its address refuses
        connections. Both count only while the lease lives: after its end a fence may be on its way.
        """
        self._sent.clear()
        limit = now + self._grace_s * GRACE_SHARE
        if not (nobody_fences and now < self.alone_until):
            self._unsure_from = min(self._unsure_from, limit)
        else:
            self._unsure_from = float("inf")
        if not ((nobody_fences or refused) and now < self.until):
            self._broken_until = min(self._broken_until, limit)
        else:
            self._broken_until = float("inf")

    def end(self) -> None:
        """End the lease: the controller fenced or replaced this incarnation."""
        self._ended = True
