"""Group commit of the WAL: which groups share a slot, when a slot is written, and which groups may
be acknowledged. Pure: `now` is in seconds of a monotonic clock.
"""

from collections import deque
from math import exp
from typing import Generic, TypeVar

from penstock.base.ids import WalSequence
from penstock.stream.config import StreamConfig
from penstock.stream.errors import WalClosed
from penstock.stream.wal.sender import Sender

G = TypeVar("G")

_RATE_WINDOW_S = 0.5
_GAP_WEIGHT = 0.2
_GAP_MAX_S = 0.02
_PAUSE_GAPS = 4
_AGAIN_S_MIN = 0.001
_AGAIN_S_MAX = 0.005
"""Limits for how long a bulk waits after an acknowledgment for more requests from the acknowledged
clients, which is half the duration of their PUT. uvloop timers have a resolution of 1 ms.
"""
_AGAIN_BYTES_MAX = 65_536
"""Bulk size up to which a PUT costs more than transferring the bytes, so that waiting pays off."""
_NOT_SEALED = WalSequence(-1)


class Bulk(Generic[G]):
    """Groups that share one WAL object. `sequence` is -1 until the bulk is sealed.

    depth: the number of slots from the first non-durable one up to this one when its PUT begins.
    senders: one for each group whose client waits for the response. joinable: senders that may
    still add to the bulk.
    """

    __slots__ = (
        "depth",
        "durable",
        "groups",
        "joinable",
        "number",
        "opened_at",
        "senders",
        "sequence",
        "size_bytes",
        "started_at",
    )

    def __init__(self, number: int, opened_at: float) -> None:
        self.number = number
        self.groups: list[G] = []
        self.senders: list[Sender] = []
        self.joinable: set[Sender] = set()
        self.size_bytes = 0
        self.opened_at = opened_at
        self.sequence = _NOT_SEALED
        self.depth = 0
        self.durable = False
        self.started_at = 0.0


class WalCore(Generic[G]):
    """Moves bulks through their states: open, sealed (assigned to a slot), in flight, durable,
    acknowledged. Alternatively, all of them fail.

    Slots are numbered without gaps in the order of their groups, and each group is in exactly one
    slot. Bulks are acknowledged in slot order, once every earlier slot is durable. After `fail`,
    nothing is acknowledged.
    """

    def __init__(self, config: StreamConfig) -> None:
        self.reconfigure(config)
        self._in_flight_max = config.wal_in_flight_max
        self._open: Bulk[G] | None = None
        self._bulk_count = 0
        self._sealed: deque[Bulk[G]] = deque()
        self._started: deque[Bulk[G]] = deque()
        """Bulks in slot order, from the first one that is not acknowledged."""
        self._in_flight_count = 0
        self._next = WalSequence(0)
        self._unacknowledged_bytes = 0
        self._failed = False
        self._last_append = 0.0
        self._last_put = -self._interval_s
        self._mean_gap_s = 0.0
        self._recent_bytes = 0.0
        self._again_count = 0
        self._again_until = 0.0
        self._returning: dict[Sender, float] = {}
        """Clients that were acknowledged within the last `_linger_idle_s`, with the time of the
        acknowledgment, oldest first. They can send again and may still join the open bulk.
        """

    def reconfigure(self, config: StreamConfig) -> None:
        """Change waits and sizes, effective from the next decision."""
        self._bulk_bytes_max = config.bulk_bytes_max
        self._batching_bytes_per_s = config.batching_bytes_per_s
        self._linger_s = config.wal_linger_ms / 1000
        self._linger_idle_s = min(config.wal_linger_ms, config.wal_linger_idle_ms) / 1000
        self._pause_s = config.wal_pause_ms / 1000
        self._interval_s = min(config.wal_linger_ms, config.wal_put_interval_ms) / 1000

    @property
    def unacknowledged_bytes(self) -> int:
        return self._unacknowledged_bytes

    @property
    def in_flight_count(self) -> int:
        return self._in_flight_count

    @property
    def oldest_opened_at(self) -> float | None:
        """The time when the oldest unacknowledged bulk received its first group; None if all are
        acknowledged.
        """
        oldest = (
            self._started[0] if self._started else self._sealed[0] if self._sealed else self._open
        )
        return None if oldest is None else oldest.opened_at

    @property
    def oldest_started_at(self) -> float | None:
        """The time when the PUT of the oldest unacknowledged slot began; None if no PUT is in
        flight.
        """
        return self._started[0].started_at if self._started else None

    @property
    def failed(self) -> bool:
        return self._failed

    @property
    def end(self) -> WalSequence:
        """The slot of the next bulk to be sealed."""
        return self._next

    @property
    def acknowledged_end(self) -> WalSequence:
        """All slots below this one are acknowledged."""
        if self._started:
            return self._started[0].sequence
        return self._sealed[0].sequence if self._sealed else self._next

    def append(self, group: G, size_bytes: int, now: float, sender: Sender | None = None) -> None:
        """Add a group to the open bulk, in 0.5 to 1 us. Raises WalClosed after a failure.

        sender: the client that waits for the acknowledgment; None if no client is waiting, or if
        its other requests in flight are unknown.
        """
        if self._failed:
            raise WalClosed("the WAL has failed or is fenced")
        gap = now - self._last_append
        self._last_append = now
        if gap > 0:
            self._recent_bytes *= exp(-gap / _RATE_WINDOW_S)
        self._mean_gap_s += (min(gap, _GAP_MAX_S) - self._mean_gap_s) * _GAP_WEIGHT
        self._recent_bytes += size_bytes
        self._unacknowledged_bytes += size_bytes
        bulk = self._open
        if bulk is not None and bulk.size_bytes + size_bytes > self._bulk_bytes_max:
            self._seal(bulk)
            bulk = None
        if bulk is None:
            self._bulk_count += 1
            bulk = self._open = Bulk(self._bulk_count, now)
        bulk.groups.append(group)
        if sender is not None:
            self._join(bulk, sender)
        bulk.size_bytes += size_bytes
        if bulk.size_bytes >= self._bulk_bytes_max:
            self._seal(bulk)

    def flush(self) -> WalSequence:
        """Seal the open bulk. All groups appended so far are durable when `acknowledged_end`
        reaches the returned slot.
        """
        if self._open is not None:
            self._seal(self._open)
        return self._next

    def next_bulk(self, now: float) -> Bulk[G] | None:
        """Return a bulk whose PUT must begin now, or None. Call this until it returns None, after
        every event and at `wake_at`.
        """
        if self._failed or self._in_flight_count >= self._in_flight_max:
            return None
        if not self._sealed and self._open is not None and self._due_at(self._open, now) <= now:
            self._seal(self._open)
        if not self._sealed:
            return None
        bulk = self._sealed.popleft()
        self._started.append(bulk)
        bulk.depth = bulk.sequence - self._started[0].sequence + 1
        self._in_flight_count += 1
        self._last_put = bulk.started_at = now
        return bulk

    def wake_at(self, now: float) -> float | None:
        """Return the time at which `next_bulk` may return a bulk without another event, or None."""
        if self._failed or self._open is None or self._in_flight_count >= self._in_flight_max:
            return None
        return self._due_at(self._open, now)

    def put_succeeded(self, sequence: WalSequence, now: float) -> list[Bulk[G]]:
        """Mark the slot as durable. Return the bulks that may be acknowledged now, in
        slot order.
        """
        if self._failed:
            return []
        bulk = self._started[sequence - self._started[0].sequence]
        assert bulk.sequence == sequence, f"slot {sequence} is not in flight"
        assert not bulk.durable, f"slot {sequence} became durable twice"
        bulk.durable = True
        self._in_flight_count -= 1
        acknowledged: list[Bulk[G]] = []
        while self._started and self._started[0].durable:
            head = self._started.popleft()
            self._unacknowledged_bytes -= head.size_bytes
            self._settle(head, now)
            acknowledged.append(head)
        if acknowledged:
            self._expect_again(acknowledged, now)
        return acknowledged

    def hand_over(self) -> list[Bulk[G]]:
        """Return all bulks, in order and each with its slot, to be made durable elsewhere. Their
        slots are never written again. One number is skipped, so that new slots are above all slots
        in earlier requests.
        """
        self.flush()
        pending = self.fail()
        self._failed = False
        self._again_count = 0
        self._next = WalSequence(self._next + 1)
        return pending

    def fail(self) -> list[Bulk[G]]:
        """End the WAL, because a slot is fenced or could not be written. Return all bulks that will
        never be acknowledged, in order.
        """
        pending = [*self._started, *self._sealed]
        if self._open is not None:
            pending.append(self._open)
        self._failed = True
        for bulk in pending:
            for sender in bulk.senders:
                sender.settled()
        self._returning.clear()
        self._started.clear()
        self._sealed.clear()
        self._open = None
        self._in_flight_count = 0
        self._unacknowledged_bytes = 0
        return pending

    def check_invariants(self) -> None:
        numbered = [*self._started, *self._sealed]
        for expected, bulk in enumerate(numbered, self._next - len(numbered)):
            assert bulk.sequence == expected, f"slot {bulk.sequence} where {expected} belongs"
        assert not self._started or not self._started[0].durable, (
            "the head is durable but not acknowledged"
        )
        assert not any(bulk.durable for bulk in self._sealed), "a bulk is durable before its PUT"
        assert self._in_flight_count == sum(not bulk.durable for bulk in self._started), (
            "in-flight count is wrong"
        )
        assert self._in_flight_count <= self._in_flight_max, "too many PUTs"
        bulks = numbered if self._open is None else [*numbered, self._open]
        assert all(bulk.groups for bulk in bulks), "an empty bulk"
        assert self._unacknowledged_bytes == sum(bulk.size_bytes for bulk in bulks), (
            "bytes do not add up"
        )
        assert not (self._failed and bulks), "something is pending after the failure"

    def _join(self, bulk: Bulk[G], sender: Sender) -> None:
        sender.appended()
        sender.bulk_number = bulk.number
        bulk.senders.append(sender)
        if sender.awaits_response:
            bulk.joinable.discard(sender)
            self._returning.pop(sender, None)
        else:
            bulk.joinable.add(sender)

    def _settle(self, bulk: Bulk[G], now: float) -> None:
        """Mark the clients of an acknowledged bulk as able to send again."""
        waiting, returning = self._open, self._returning
        for sender in bulk.senders:
            sender.settled()
            returning.pop(sender, None)
            returning[sender] = now
            if waiting is not None and sender.bulk_number == waiting.number:
                waiting.joinable.add(sender)
        while returning and next(iter(returning.values())) <= now - self._linger_idle_s:
            del returning[next(iter(returning))]

    def _seal(self, bulk: Bulk[G]) -> None:
        bulk.joinable.clear()
        bulk.sequence = self._next
        self._next = WalSequence(self._next + 1)
        self._sealed.append(bulk)
        self._open = None

    def _expect_again(self, acknowledged: list[Bulk[G]], now: float) -> None:
        """Expect more appends from clients whose small appends are acknowledged.

        Otherwise, if 8 clients wait for each response, the first one would get its own PUT and the
        other 7 would share the next one: two PUTs for 8 requests, and two waits per client.
        """
        waiting = 0 if self._open is None else len(self._open.groups)
        if sum(bulk.size_bytes for bulk in acknowledged) <= _AGAIN_BYTES_MAX:
            self._again_count = waiting + sum(len(bulk.groups) for bulk in acknowledged)
            put_s = now - self._last_put
            self._again_until = now + min(max(put_s / 2, _AGAIN_S_MIN), _AGAIN_S_MAX)
        else:
            self._again_count = 0

    def _due_at(self, bulk: Bulk[G], now: float) -> float:
        """Return the time at which the open bulk is due.

        An idle system writes immediately, a busy one batches. If all clients of the bulk are
        waiting for its response, the bulk waits only for clients that may still join it: those
        acknowledged with the last bulk if no PUT is in flight, otherwise those acknowledged within
        the last `_linger_idle_s`, because each additional PUT may delay later acknowledgments.
        """
        if bulk.senders and not bulk.joinable:
            if not self._in_flight_count:
                return self._with_acknowledged(bulk)
            newest = next(reversed(self._returning.values()), -self._linger_idle_s)
            wanted_at = max(bulk.opened_at, min(bulk.opened_at, newest) + self._linger_idle_s)
        else:
            wanted_at = self._wanted_at(bulk, now)
        return max(self._last_put + self._interval_s, wanted_at)

    def _with_acknowledged(self, bulk: Bulk[G]) -> float:
        """Return the time at which a bulk is due that waits for the clients acknowledged with the
        previous bulk.
        """
        if len(bulk.groups) < self._again_count:
            return max(bulk.opened_at, self._again_until)
        return bulk.opened_at

    def _wanted_at(self, bulk: Bulk[G], now: float) -> float:
        busy = self._in_flight_count > 0
        rate = (
            self._recent_bytes
            * exp(-max(0.0, now - self._last_append) / _RATE_WINDOW_S)
            / _RATE_WINDOW_S
        )
        if rate < self._batching_bytes_per_s:
            if busy:
                return bulk.opened_at + self._linger_idle_s
            return self._with_acknowledged(bulk)
        deadline = bulk.opened_at + self._linger_s
        if busy:
            return deadline
        return min(deadline, self._last_append + max(self._pause_s, _PAUSE_GAPS * self._mean_gap_s))
