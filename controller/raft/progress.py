"""The progress of one follower from the leader's point of view, and how much may be sent to it. See
etcd/raft `tracker/progress.go`.

In PROBE, one append may be in flight; in REPLICATE, a limited number of appends and bytes; in
SNAPSHOT, while the follower loads a snapshot from the store, none.
"""

from collections import deque
from enum import Enum


class State(Enum):
    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Progress:
    def __init__(self, next_index: int, now_ms: int, directory: str = "") -> None:
        self.directory = directory
        """Directory id of the follower's disk. The progress applies only to this disk."""
        self.leaves_at_ms = 0
        """For a removed follower, the time until which the leader sends the log with the removal. 0
        for a member, and until the removal is committed.
        """
        self.fsync_us = 0
        self.caught_up_ms = 0
        """Last time at which the follower had the whole log of the leader, or 0."""
        self.match = 0
        """Index up to which the follower's log equals the leader's log. It never decreases, because
        followers acknowledge only durable entries.
        """
        self.next = next_index
        """Index of the next entry to send. Always greater than `match`."""
        self.state = State.PROBE
        self.round = 0
        """Newest heartbeat round that the follower has acknowledged."""
        self.heard_ms = now_ms
        """Send time of the newest message that the follower has acknowledged together with its log,
        which requires its disk.
        """
        self.contact_ms = now_ms
        """Send time of the newest message that the follower has acknowledged in any way."""
        self.commit_sent = 0
        self.probe_is_out = False
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    def may_send(self, count_max: int, bytes_max: int) -> bool:
        """Return whether entries may be sent now."""
        if self.state is State.REPLICATE:
            return len(self._inflight) < count_max and self._inflight_bytes < bytes_max
        return self.state is State.PROBE and not self.probe_is_out

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Record that entries up to `last_index` were sent."""
        if self.state is State.REPLICATE:
            self._inflight.append((last_index, size_bytes))
            self._inflight_bytes += size_bytes
            self.next = last_index + 1
        else:
            self.probe_is_out = True

    def responded(self, round_number: int, sent_ms: int) -> None:
        """Record a reply that contains the state of the follower's log."""
        self.contacted(round_number, sent_ms)
        self.heard_ms = max(self.heard_ms, sent_ms)

    def contacted(self, round_number: int, sent_ms: int) -> None:
        """Record any reply: the follower follows this leader, even if its disk is busy."""
        self.round = max(self.round, round_number)
        self.contact_ms = max(self.contact_ms, sent_ms)

    def acknowledged(self, index: int) -> bool:
        """Record that the follower has durable entries up to `index`. Return whether `match` has
        increased.
        """
        while self._inflight and self._inflight[0][0] <= index:
            self._inflight_bytes -= self._inflight.popleft()[1]
        is_news = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, index + 1)
        self.probe_is_out = False
        return is_news

    def rejected(self, prev_index: int, agreed_max: int) -> bool:
        """Record that the follower does not have the entry (prev_index, prev_term). The logs may
        agree up to `agreed_max`.

        Return False if nothing changes and no append needs to be sent: the reply is old, or it is
        from a disk that lacks entries that it had acknowledged.
        """
        if self.state is State.REPLICATE:
            if prev_index <= self.match:
                return False
            self.probe(self.match + 1)
            return True
        if self.state is State.SNAPSHOT or prev_index != self.next - 1:
            return False
        before, self.next = self.next, max(min(prev_index, agreed_max + 1), self.match + 1)
        self.probe_is_out = self.next == before
        return not self.probe_is_out

    def probe(self, next_index: int) -> None:
        self._enter(State.PROBE)
        self.next = next_index

    def replicate(self) -> None:
        self._enter(State.REPLICATE)
        self.next = self.match + 1

    def snapshot(self) -> None:
        self._enter(State.SNAPSHOT)

    def _enter(self, state: State) -> None:
        self.state = state
        self.probe_is_out = False
        self._inflight.clear()
        self._inflight_bytes = 0
