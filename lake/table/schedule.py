"""Decide when a runner exports each topic, and keep the state of its export.

A topic whose table is complete is exported again after its interval, a topic with more records is
exported as soon as it is its turn, and a failed topic after a pause that grows with each failure.
Pure: times and randomness are parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from penstock.base.backoff import Backoff
from penstock.lake.manifest.table_status import (
    BEHIND,
    FAILING,
    UP_TO_DATE,
    WAITING,
    TopicStatus,
)
from penstock.lake.table.declared import DeclaredTable

PAUSE_MS_MIN: Final = 1_000
PAUSE_MS_MAX: Final = 300_000
BEHIND_MS_MIN: Final = 60_000
"""A topic is behind if its lag exceeds two intervals plus this time."""

ERROR_CHARACTERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of one turn of a topic. `began_ms`: the wall-clock time before the end of the log
    was read. `remaining`: known records that were not exported.
    """

    began_ms: int
    remaining: int = 0
    committed: bool = False
    rows: int = 0
    rejected: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    error: str


@dataclass(slots=True)
class _Topic:
    table: DeclaredTable
    due_s: float
    since_ms: int
    pauses: Backoff
    complete_s: float
    """The time up to which the table contains all records, or the time when the topic was found, on
    the monotonic clock of this process.
    """

    is_running: bool = False
    began_s: float = 0.0
    has_ended: bool = False
    """Whether a turn was complete or failed."""

    is_complete: bool = False
    """Whether the last turn exported all records."""

    complete_ms: int = 0
    commit_ms: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("commits", "rows", "rejected", "skipped"), 0)
    )
    remaining: int = 0
    error: str = ""
    error_ms: int = 0


class Schedule:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._topics: dict[str, _Topic] = {}

    def declare(
        self,
        tables: Mapping[str, DeclaredTable],
        now_s: float,
        now_ms: int,
        known: Mapping[str, TopicStatus],
    ) -> tuple[list[DeclaredTable], list[DeclaredTable]]:
        """Update the declared tables. Return the added and the removed tables; a changed table is
        in both lists. `known`: statuses of an earlier runner.
        """
        changed = [topic for name, topic in self._topics.items() if tables.get(name) != topic.table]
        known = dict(known) | {topic.table.topic: _status(topic, now_s) for topic in changed}
        for topic in changed:
            del self._topics[topic.table.topic]
        added = [table for name, table in tables.items() if name not in self._topics]
        for table in added:
            self._topics[table.topic] = self._new(table, now_s, now_ms, known.get(table.topic))
        removed = [topic.table for topic in changed]
        return added, removed

    def _new(
        self, table: DeclaredTable, now_s: float, now_ms: int, known: TopicStatus | None
    ) -> _Topic:
        """Return a topic that is due. If its table is unchanged, its lag continues."""
        pauses = Backoff(PAUSE_MS_MIN, PAUSE_MS_MAX, self._rng)
        topic = _Topic(table, now_s, now_ms, pauses, now_s)
        is_same = known is not None and (known.topic_id, known.table, known.format) == (
            table.topic_id,
            table.table,
            table.settings.format,
        )
        if known is not None and is_same:
            topic.since_ms = min(now_ms, known.since_ms)
            topic.complete_ms = min(now_ms, known.complete_ms)
            topic.commit_ms = known.commit_ms
            topic.complete_s -= (now_ms - (topic.complete_ms or topic.since_ms)) / 1_000
        return topic

    def due(self, now_s: float, free: int) -> list[DeclaredTable]:
        """Start the turns of at most `free` topics, beginning with those that have been due
        longest.
        """
        waiting = sorted(
            (
                topic
                for topic in self._topics.values()
                if not topic.is_running and topic.due_s <= now_s
            ),
            key=lambda topic: topic.due_s,
        )[:free]
        for topic in waiting:
            topic.is_running, topic.began_s = True, now_s
        return [topic.table for topic in waiting]

    def next_due_s(self) -> float | None:
        """Return the time of the next turn, or None if there is none."""
        waiting = [topic.due_s for topic in self._topics.values() if not topic.is_running]
        return min(waiting, default=None)

    def finish(
        self, table: DeclaredTable, result: Exported | Failed, now_s: float, now_ms: int
    ) -> bool:
        """Process the result of a turn. Return False if the declaration has changed since `due`."""
        topic = self._topics.get(table.topic)
        if topic is None or topic.table is not table:
            return False
        topic.is_running = False
        if isinstance(result, Failed):
            topic.error, topic.error_ms = result.error[:ERROR_CHARACTERS_MAX], now_ms
            topic.due_s = now_s + topic.pauses.next_s()
            topic.has_ended, topic.is_complete = True, False
            return True
        topic.pauses = Backoff(PAUSE_MS_MIN, PAUSE_MS_MAX, self._rng)
        topic.error, topic.error_ms = "", 0
        topic.remaining = result.remaining
        if result.committed:
            topic.commit_ms = now_ms
            topic.counts["commits"] += 1
            topic.counts["rows"] += result.rows
            topic.counts["rejected"] += result.rejected
            topic.counts["skipped"] += result.skipped
        topic.is_complete = not result.remaining
        if result.remaining:
            topic.due_s = now_s
        else:
            topic.complete_ms, topic.complete_s = result.began_ms, topic.began_s
            topic.due_s = topic.began_s + table.settings.commit_interval_ms / 1_000
            topic.has_ended = True
        return True

    @property
    def is_settled(self) -> bool:
        """Return whether the export of every topic has been complete or has failed."""
        return all(topic.has_ended for topic in self._topics.values())

    def statuses(self, now_s: float) -> tuple[TopicStatus, ...]:
        return tuple(_status(topic, now_s) for _, topic in sorted(self._topics.items()))


def _status(topic: _Topic, now_s: float) -> TopicStatus:
    settings = topic.table.settings
    lag_ms = round((now_s - topic.complete_s) * 1_000)  # this is independent of the wall clock
    return TopicStatus(
        topic=topic.table.topic,
        topic_id=topic.table.topic_id,
        table=topic.table.table,
        format=settings.format,
        state=_state(topic, lag_ms),
        commit_interval_ms=settings.commit_interval_ms,
        lag_records=topic.remaining,
        lag_ms=lag_ms,
        since_ms=topic.since_ms,
        complete_ms=topic.complete_ms,
        commit_ms=topic.commit_ms,
        **topic.counts,
        failures=topic.pauses.attempt_count,
        error=topic.error,
        error_ms=topic.error_ms,
    )


def _state(topic: _Topic, lag_ms: int) -> str:
    if topic.error:
        return FAILING
    if lag_ms > 2 * topic.table.settings.commit_interval_ms + BEHIND_MS_MIN:
        return BEHIND
    return UP_TO_DATE if topic.is_complete else WAITING
