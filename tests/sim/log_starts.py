"""Logs that lose their oldest records: by DeleteRecords, by age and by size.

Checked at once: a log start is committed metadata before a broker names it; no answer that begins
later names an earlier one; a log start moves only over records that somebody asked to delete, that
are older than the topic keeps, or that are more than it keeps.
Must not look into brokers: it sees what they answer, and the metadata.
"""

from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

from controller.metadata.image import MetadataImage
from tests.sim.checkers import Part

if TYPE_CHECKING:
    from tests.sim.world import World

CHECK_INTERVAL_S = 0.5


class LogStarts:
    def __init__(self, world: "World") -> None:
        rng = Random(f"{world.seed}/log-starts")
        self._world = world
        self._age_ms = rng.choice((-1, 1_500, 4_000))
        self._size_bytes = rng.choice((-1, 2_000, 20_000))
        self._sent_ms: dict[bytes, int] = {}
        self._asked: dict[Part, int] = {}
        self._told: dict[Part, int] = {}
        self._seen: dict[Part, int] = {}

    @property
    def configs(self) -> dict[str, str | None]:
        """Of the topic."""
        return {"retention.ms": str(self._age_ms), "retention.bytes": str(self._size_bytes)}

    def sent(self, identities: Iterable[bytes]) -> None:
        """Records with the timestamp of this moment."""
        self._sent_ms.update(dict.fromkeys(identities, self._world.now_ms()))

    def asked(self, part: Part, offset: int) -> None:
        """A client asks to delete everything below `offset`."""
        self._asked[part] = max(self._asked.get(part, 0), offset)

    def told(self) -> Mapping[Part, int]:
        """The latest log start that was named so far."""
        return dict(self._told)

    def names(self, part: Part, log_start: int, before: Mapping[Part, int]) -> None:
        """A broker names a log start. before: `told` when it began to look."""
        committed = self._world.log_start(part)
        if log_start > committed:
            self._world.fail(
                f"{part}: log start {log_start} is named, {committed} is committed: it can go back"
            )
        if log_start < before.get(part, 0):
            self._world.fail(f"{part}: the log start goes back from {before[part]} to {log_start}")
        self._told[part] = max(self._told.get(part, 0), log_start)

    def look(self, image: MetadataImage) -> None:
        """The metadata have moved on."""
        for part in self._world.parts:
            topic = image.topics.by_name(part[0])
            if topic is None:
                continue
            stream = image.streams.known(topic.partitions[part[1]].data_stream_id)
            start, seen = stream.start_offset, self._seen.get(part, 0)
            if start == seen:
                continue
            self._seen[part] = start
            left_bytes = sum(entry.size_bytes for entry in stream.entries)
            if (
                start <= self._asked.get(part, 0)
                or self._is_old(part, max(seen, self._asked.get(part, 0)), start)
                or 0 <= self._size_bytes <= left_bytes
            ):
                continue
            self._world.fail(
                f"{part}: the log start moves from {seen} to {start}: not asked for"
                f" ({self._asked.get(part, 0)}), not old ({self._age_ms} ms), not too much"
                f" ({left_bytes} bytes left of {self._size_bytes})"
            )

    def _is_old(self, part: Part, start: int, end: int) -> bool:
        if self._age_ms < 0:
            return False
        limit_ms = self._world.now_ms() + self._world.limits.skew_ms - self._age_ms
        return all(
            self._sent_ms[identity] < limit_ms
            for identity, offset in self._world.checker.acked(part).items()
            if start <= offset < end
        )
