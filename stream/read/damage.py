"""Track damaged and missing objects found by reads, for logs, metrics and the doctor. Times are the
caller's monotonic seconds. Pure.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

DamageKind = Literal["gone", "corrupt"]
"""gone: an object in the metadata does not exist in the store. corrupt: bytes do not match their
checksum or layout.
"""
DAMAGE_KINDS: Final[tuple[DamageKind, ...]] = ("gone", "corrupt")

OBJECTS_MAX: Final = 1_000
KEPT_S: Final = 3_600.0
KNOWN_S: Final = 60.0
"""How long known damage of an object is reported without another attempt."""
LOG_EVERY_S: Final = 60.0
"""Minimum time between two log events for one object."""
CERTAIN_S: Final = 10.0
"""Time after which a missing object counts as lost: by then, outdated metadata would have been
updated, or the broker's session would have ended.
"""


@dataclass(slots=True)
class Damage:
    """An object that could not be read.

    count: number of reads that failed at the object. stream_id, offset: where the last read failed.
    first_s: start of the current sequence of failed reads, each within `KNOWN_S` of the previous
    one.
    """

    key: str
    kind: DamageKind
    what: str
    stream_id: int
    offset: int
    first_s: float
    last_s: float
    count: int = 1
    logged_s: float = 0.0

    @property
    def is_certain(self) -> bool:
        """Return whether enough time has passed to rule out outdated metadata."""
        return self.last_s - self.first_s >= CERTAIN_S


class DamageLog:
    """The damaged objects found by reads in one process, at most `OBJECTS_MAX`.

    A restored object is removed by the next read of the same range, or after `KEPT_S` without a
    failed read.
    """

    def __init__(self) -> None:
        self._damages: OrderedDict[str, Damage] = OrderedDict()
        self.reads: Counter[DamageKind] = Counter()
        """Number of reads that failed at a damaged object."""

    def record(
        self, key: str, kind: DamageKind, what: str, *, stream_id: int, offset: int, now_s: float
    ) -> tuple[Damage, bool]:
        """Record that a read failed at `key`. Return the damage, and whether to log it now."""
        self._forget(now_s)
        self.reads[kind] += 1
        known = self._damages.get(key)
        if known is None or known.kind != kind:
            known = self._damages[key] = Damage(
                key, kind, what, stream_id, offset, now_s, now_s, logged_s=now_s
            )
            self._damages.move_to_end(key)
            if len(self._damages) > OBJECTS_MAX:
                self._damages.popitem(last=False)
            return known, True
        if now_s - known.last_s >= KNOWN_S:
            known.first_s = now_s
        known.what, known.stream_id, known.offset, known.last_s = what, stream_id, offset, now_s
        known.count += 1
        self._damages.move_to_end(key)
        if now_s - known.logged_s < LOG_EVERY_S:
            return known, False
        known.logged_s = now_s
        return known, True

    def is_known(self, key: str, kind: DamageKind, now_s: float) -> bool:
        """Return whether a read failed at `key` for the same reason within the last `KNOWN_S`."""
        known = self._damages.get(key)
        return known is not None and known.kind == kind and now_s - known.last_s < KNOWN_S

    def __len__(self) -> int:
        return len(self._damages)

    def forget_range(self, stream_id: int, start: int, end: int) -> None:
        """Remove objects at which the last read failed in [start, end), because this range has now
        been read.
        """
        for key in [
            item.key
            for item in self._damages.values()
            if item.stream_id == stream_id and start <= item.offset < end
        ]:
            del self._damages[key]

    def listed(self, now_s: float) -> list[Damage]:
        """Return the damage found within the last `KEPT_S`, latest first."""
        self._forget(now_s)
        return list(reversed(self._damages.values()))

    def _forget(self, now_s: float) -> None:
        while self._damages:
            oldest = next(iter(self._damages.values()))
            if now_s - oldest.last_s < KEPT_S:
                return
            self._damages.popitem(last=False)
