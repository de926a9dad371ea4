"""How long a broker may believe that its session lives, by its own clock. Pure: monotonic seconds
come in.

Invariant: it ends before the controller can have fenced the node for silence. Let a heartbeat leave
here at s and be heard there at h >= s. The controller fences at h + T at the earliest (T: session
timeout) and says in its next message that it heard it. The lease runs to s + 0.85 T, of heartbeats
that were *answered* only: s + 0.85 T < h + T, whatever the network and a paused process do, as long
as the two monotonic clocks differ by less than 15 % in rate. A process that was stopped finds its
lease over at its first look at the clock.

A stream that broke is fenced after a grace G, which is shorter. We see a break at the latest when
our next heartbeat is sent (at most 0.5 G later) and then go on for 0.4 G: 0.9 G < G. The other end
can lift that limit, and only within that time: it says on its way out that it stops, or that it
does not lead. Then it fences no more, and a controller that begins to lead gives everybody a whole
timeout first, so that a restart or a change of the leader stops nothing. Later than that, its fence
may already be on its way, and only an answered heartbeat helps. A leader that is cut off stops
answering within the election timeout, before another can be elected (`controller.raft.core`,
check-quorum).

An address that refuses connections says less. Most often the process is gone, but a firewall that
rejects, or a port that is forwarded, answers the same while the controller lives and fences. So
there are two ends. `until` takes a refusal for the death of the controller: the broker may
acknowledge until then, because the fence object in the WAL protects every acknowledgement in any
case, and producers notice nothing of a controller that was killed. `alone_until` does not: until
then it is certain that nobody else leads what this broker leads, and nothing but that protects what
it says about where a log ends.

What is left: a network that resets the controller's end of a stream while it swallows everything on
the way to the broker, the reset too. The controller then fences after G, and the broker believes
until 0.85 T that it leads alone. Answers about ends of logs may be behind for that time. To end it
after 0.9 G of silence would need an answer to each heartbeat at once, and every pause of a
controller would stop them.

Must not be the only thing that protects data: that is the WAL slot. Source: Gray & Cheriton,
"Leases" (SOSP 1989).
"""

from collections import deque

SESSION_SHARE = 0.85
GRACE_SHARE = 0.4
HEARTBEAT_SHARE = 0.5
HEARTBEAT_S_DEFAULT = 0.1
"""Until the controller has told its limits, which it does in its first message."""

SENT_COUNT_MAX = 64
"""Unanswered heartbeats that are remembered; older ones would give a lease that is over anyway."""


class Lease:
    """One broker's belief in its session."""

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
        """Fenced: this incarnation never gets a session again."""
        return self._ended

    @property
    def until(self) -> float:
        """The lease is over from this time on."""
        return float("-inf") if self._ended else min(self._until, self._broken_until)

    @property
    def alone_until(self) -> float:
        """Before this time no other broker can have been made the leader of what this one leads.
        Never later than `until`.
        """
        return min(self.until, self._unsure_from)

    @property
    def heartbeat_s_max(self) -> float:
        """Longest pause between heartbeats with which a break is noticed early enough."""
        return self._grace_s * HEARTBEAT_SHARE if self._grace_s else HEARTBEAT_S_DEFAULT

    def is_alive(self, now: float) -> bool:
        return now < self.until

    def stream_began(self) -> None:
        """A new stream: heartbeats count from 1 again. The lease goes on with the first that is
        answered.
        """
        self._sent.clear()

    def sent(self, heartbeat: int, now: float) -> None:
        """Call before the heartbeat leaves."""
        self._sent.append((heartbeat, now))

    def set_limits(self, timeout_ms: int, grace_ms: int) -> None:
        """The controller's limits; they come before or with the first answer."""
        self._timeout_s = timeout_ms / 1_000
        self._grace_s = grace_ms / 1_000

    def answered(self, heartbeat: int) -> None:
        """The controller had heard this heartbeat of the present stream."""
        while self._sent and self._sent[0][0] <= heartbeat:
            _, sent_at = self._sent.popleft()
            self._until = max(self._until, sent_at + self._timeout_s * SESSION_SHARE)
            self._broken_until = self._unsure_from = float("inf")

    def stream_broke(
        self, now: float, *, nobody_fences: bool = False, refused: bool = False
    ) -> None:
        """Shorten the lease, because the stream ended or could not be made anew.

        nobody_fences: the controller said that it fences no more. refused: its address refuses
        connections. Both count only while the lease
        lives: after its end a fence may be on its way.
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
        """The controller said that this incarnation is fenced or replaced."""
        self._ended = True
