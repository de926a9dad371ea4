"""The broker's lease on its session, measured by its own clock. Pure; times are in monotonic
seconds.

See docs/design/fencing.md. The fence in the WAL also protects the data, except in a WAL store that
an operator abandons, where only the end of the lease stops the writer.
"""

from collections import deque

SESSION_SHARE = 0.85
GRACE_SHARE = 0.4
HEARTBEAT_SHARE = 0.5
HEARTBEAT_S_DEFAULT = 0.1
"""Heartbeat interval until the first message of the controller arrives, which contains the
controller's limits.
"""

SENT_COUNT_MAX = 64
"""Maximum number of pending heartbeats that are kept. Older ones would only result in an expired
lease.
"""


class Lease:
    """The time until which a broker may rely on its session. The lease ends before the controller
    can have fenced the node.

    Suppose that a heartbeat leaves the broker at s and reaches the controller at h >= s. The
    controller fences at h + T at the earliest (T: session timeout). The lease ends at s + 0.85 T,
    where only acknowledged heartbeats count. Thus s + 0.85 T < h + T, regardless of network delays
    and process pauses, unless the rates of the two monotonic clocks differ by 15 % or more.

    A network may reset the controller's end of a stream while it drops all packets to the broker.
    The controller then fences after the grace period, and the broker's responses about the end of a
    log may be outdated until 0.85 T. To avoid this, the controller would have to acknowledge each
    heartbeat immediately, and every pause of a controller would stop the brokers.
    """

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
        """Whether the incarnation is fenced and can never have a session again."""
        return self._ended

    @property
    def until(self) -> float:
        """The time at which the lease ends.

        If a connection is refused, the controller is considered dead, and the broker may
        acknowledge until this time: the fence in the WAL protects every acknowledgment anyway, so a
        killed controller does not affect producers. A silent stream does not shorten this time,
        because the follower keeps it open until another one delivers messages, so the controller
        fences only after T.
        """
        return float("-inf") if self._ended else min(self._until, self._broken_until)

    @property
    def alone_until(self) -> float:
        """The time until which no other broker can have become the leader of this broker's
        partitions. It is never later than `until`.

        A refused connection does not extend this time, because a firewall or a forwarded port may
        refuse connections while the controller is alive and can fence this broker, and nothing else
        prevents stale responses about the end of a log. A silent stream does not extend it either,
        because the notice of its end may be lost like everything else that the controller sends.
        """
        return min(self.until, self._unsure_from)

    @property
    def heartbeat_s_max(self) -> float:
        """Maximum heartbeat interval with which a broken stream is detected early enough."""
        return self._grace_s * HEARTBEAT_SHARE if self._grace_s else HEARTBEAT_S_DEFAULT

    def is_alive(self, now: float) -> bool:
        return not self._ended and now < self._until and now < self._broken_until

    def stream_began(self) -> None:
        """Start a new stream, on which heartbeats are counted from 1. The first acknowledged one
        extends the lease.
        """
        self._sent.clear()

    def sent(self, heartbeat: int, now: float) -> None:
        """Record a heartbeat. Call this before the heartbeat is sent."""
        self._sent.append((heartbeat, now))

    def set_limits(self, timeout_ms: int, grace_ms: int) -> None:
        """Set the controller's limits, which arrive no later than the first acknowledgment."""
        self._timeout_s = timeout_ms / 1_000
        self._grace_s = grace_ms / 1_000

    def acknowledged(self, heartbeat: int) -> None:
        """Extend the lease, because the controller has received this heartbeat on the current
        stream.
        """
        while self._sent and self._sent[0][0] <= heartbeat:
            _, sent_at = self._sent.popleft()
            self._until = max(self._until, sent_at + self._timeout_s * SESSION_SHARE)
            self._broken_until = self._unsure_from = float("inf")

    def stream_broke(
        self, now: float, *, nobody_fences: bool = False, fence_unlikely: bool = False
    ) -> None:
        """Shorten the lease, because the stream ended or could not be opened again.

        After a broken stream, the controller fences after a shorter grace period G. The broker
        detects the break at the latest when it sends its next heartbeat, after at most 0.5 G, and
        then continues for 0.4 G.

        nobody_fences: the controller has reported that it is stopping or does not lead, so it no
        longer fences, and the next active controller grants every broker the full timeout.
        fence_unlikely: the controller's address refuses connections. Both are considered only
        before the lease ends, because afterwards a fence may already be in progress.
        """
        self._sent.clear()
        limit = now + self._grace_s * GRACE_SHARE
        if not (nobody_fences and now < self.alone_until):
            self.stream_fell_silent(now)
        else:
            self._unsure_from = float("inf")
        if not ((nobody_fences or fence_unlikely) and now < self.until):
            self._broken_until = min(self._broken_until, limit)
        else:
            self._broken_until = float("inf")

    def stream_fell_silent(self, now: float) -> None:
        """Shorten `alone_until` as after a broken stream, because the follower may not detect the
        end of a silent stream. The broker may continue to acknowledge.
        """
        self._unsure_from = min(self._unsure_from, now + self._grace_s * GRACE_SHARE)

    def end(self) -> None:
        """End the lease, because the controller has fenced or replaced this incarnation."""
        self._ended = True
