"""Logs that lose their oldest records by DeleteRecords, by age and by size.

A log start is committed before a broker returns it, never decreases, and skips only records that a
client deleted or that exceed the retention limits. Deleted records that can be restored are tracked
independently of the product's kept log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.log_entry import LogEntry
from tests.sim.checkers import Part
from tests.sim.leaks import LEAKING

if TYPE_CHECKING:
    from tests.sim.world import World

CHECK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class RequestedMove:
    """A log start that only requests move."""

    moved_s: float
    start: int
    """The previous log start."""


class LogStarts:
    def __init__(self, world: "World", *, has_age: bool) -> None:
        """has_age: False where clocks are set, because a broker that is an hour ahead considers
        every record old, as in Kafka.
        """
        rng = Random(f"{world.seed}/log-starts")
        self._world = world
        self._age_ms = rng.choice((-1, 1_500, 4_000))
        self._size_bytes = rng.choice((-1, 2_000, 20_000))
        if world.scenario in LEAKING:
            self._age_ms, self._size_bytes = rng.choice(((4_000, -1), (-1, 20_000)))
        if not has_age:
            self._age_ms = -1
        self._sent_ms: dict[bytes, int] = {}
        self._requested: dict[Part, int] = {}
        self._reported: dict[Part, int] = {}
        self._seen: dict[Part, int] = {}
        self._starts: dict[Part, set[int]] = {}
        """All log starts so far."""
        self._entries: dict[Part, list[LogEntry]] = {}
        self._requests: dict[Part, set[int]] = {}
        """All offsets that were requested."""
        self._retained: dict[Part, set[int]] = {}
        """All log starts that brokers propose without a client request."""
        self._moves: dict[Part, list[RequestedMove]] = {}
        """The newest moves, back to one without a request."""

    @property
    def configs(self) -> dict[str, str | None]:
        """The configs of the topic."""
        return {"retention.ms": str(self._age_ms), "retention.bytes": str(self._size_bytes)}

    def note_sent(self, identities: Iterable[bytes]) -> None:
        """Record records with the current timestamp."""
        self._sent_ms.update(dict.fromkeys(identities, self._world.now_ms()))

    def record_request(self, part: Part, offset: int) -> None:
        """Record that a client requests the deletion of everything below `offset`."""
        self._requested[part] = max(self._requested.get(part, 0), offset)
        self._requests.setdefault(part, set()).add(offset)

    def note_retention(self, part: Part, offset: int) -> None:
        """Record that a broker proposes to trim a log by retention."""
        self._retained.setdefault(part, set()).add(offset)

    def can_restore(self, part: Part) -> bool:
        """Return whether some deleted records can currently be restored."""
        return self.restorable_from(part, self._world.loop.time()) < self._seen.get(part, 0)

    def restorable_from(self, part: Part, moved_until_s: float) -> int:
        """Return an offset from which everything can currently be restored, if it was deleted until
        `moved_until_s`.
        """
        start = self._seen.get(part, 0)
        now_s, grace_s = (
            self._world.loop.time(),
            self._world.limits.controller.delete_grace_ms / 1_000,
        )
        for move in reversed(self._moves.get(part, [])):
            if move.moved_s > moved_until_s or now_s >= move.moved_s + grace_s:
                break
            start = move.start
        return start

    def reported(self) -> Mapping[Part, int]:
        """Return the latest reported log start of every log."""
        return dict(self._reported)

    def note_response(self, part: Part, log_start: int, before: Mapping[Part, int]) -> None:
        """A broker reports a log start. before: `reported` at the start of its call."""
        committed = self._world.log_start(part)
        if log_start > committed:
            self._world.fail(
                f"{part}: log start {log_start} is not committed, only {committed}: it can go back"
            )
        if log_start < before.get(part, 0):
            self._world.fail(f"{part}: the log start goes back from {before[part]} to {log_start}")
        self._reported[part] = max(self._reported.get(part, 0), log_start)

    def rebuilt(self, image: MetadataImage) -> None:
        """Handle the loss of all controllers' disks, after which they start from `image`. Log
        starts may be those before their last moves.
        """
        for part in self._world.parts:
            topic = image.topics.by_name(part[0])
            if topic is None:
                continue
            start = image.streams.known(topic.partitions[part[1]].data_stream_id).start_offset
            if start not in self._starts.get(part, {0}):
                self._world.fail(f"{part}: the log start {start} after a recovery is a new one")
            self._seen[part] = min(start, self._seen.get(part, 0))
            self._reported.pop(part, None)
            self._moves.pop(part, None)

    def observe(self, image: MetadataImage) -> None:
        """Check a new metadata image."""
        for part in self._world.parts:
            topic = image.topics.by_name(part[0])
            if topic is None:
                continue
            stream = image.streams.known(topic.partitions[part[1]].data_stream_id)
            before, self._entries[part] = self._entries.get(part, []), list(stream.entries)
            start, seen = stream.start_offset, self._seen.get(part, 0)
            if start == seen:
                continue
            if start < seen:
                self._world.fail(f"{part}: the log start goes back from {seen} to {start}")
            self._seen[part] = start
            self._starts.setdefault(part, {0}).add(start)
            self._note_move(part, seen, start)
            requested = self._requested.get(part, 0)
            left_bytes = sum(entry.size_bytes for entry in stream.entries)
            # Iterate from the end: a range may be old while the ranges before it exceed the size.
            for entry in reversed([entry for entry in before if entry.end_offset <= start]):
                low, high = max(entry.start_offset, seen, requested), entry.end_offset
                is_excess = 0 <= self._size_bytes <= left_bytes
                if low < high and not is_excess and not self._is_old(part, low, high):
                    self._world.fail(
                        f"{part}: the log start moves from {seen} to {start}: [{low}, {high}) was"
                        f" not requested ({requested}), not old ({self._age_ms} ms), and"
                        f" {left_bytes} bytes are left of {self._size_bytes}"
                    )
                left_bytes += entry.size_bytes
            if start > max([requested, *(entry.end_offset for entry in before)]):
                self._world.fail(
                    f"{part}: the log start moves from {seen} to {start}, beyond its ranges"
                )

    def _note_move(self, part: Part, before: int, start: int) -> None:
        """Record a move. If retention also proposed a start, its move may have been first."""
        retained = self._retained.get(part, set())
        is_requested = start in self._requests.get(part, ()) and start not in retained
        moves = self._moves.setdefault(part, [])
        begin = max((offset for offset in retained if before < offset < start), default=before)
        if not is_requested or begin != before:
            moves.clear()
        if is_requested:
            moves.append(RequestedMove(self._world.loop.time(), begin))

    def _is_old(self, part: Part, start: int, end: int) -> bool:
        if self._age_ms < 0:
            return False
        limit_ms = self._world.now_ms() + self._world.limits.skew_ms - self._age_ms
        return all(
            self._sent_ms[identity] < limit_ms
            for identity, offset in self._world.checker.acked(part).items()
            if start <= offset < end
        )
