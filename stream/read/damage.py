"""Remember which objects reads found damaged or gone, for logs, metrics and the doctor.

Invariant: bounded by `OBJECTS_MAX`. An object that an operator restored leaves the list with the
next read of the same place, or when no read failed at it for `KEPT_S`. Times are the caller's
monotonic seconds. Pure.
Must not decide whether an object is damaged: `stream.read.stream_reader` does.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

DamageKind = Literal["gone", "corrupt"]
"""gone: the store does not have the object that the metadata refer to. corrupt: bytes do not match
their checksum or layout.
"""
DAMAGE_KINDS: Final[tuple[DamageKind, ...]] = ("gone", "corrupt")

OBJECTS_MAX: Final = 1_000
KEPT_S: Final = 3_600.0
KNOWN_S: Final = 60.0
"""Damage found within this time needs no further attempt."""
LOG_EVERY_S: Final = 60.0
"""The shortest time between two log events of one object."""
CERTAIN_S: Final = 10.0
"""An object that is gone for this long is lost: metadata are behind by less, or the broker has lost
its session.
"""


@dataclass(slots=True)
class Damage:
    """An object that could not be read.

    count: reads that ended at it. stream_id, offset: where the last one ended. first_s: when the
    current sequence of such reads began, each within `KNOWN_S` after the one before.
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
        """Whether so much time has passed that the metadata cannot be merely behind."""
        return self.last_s - self.first_s >= CERTAIN_S


class DamageLog:
    """The damaged objects that the reads of one process found."""

    def __init__(self) -> None:
        self._damages: OrderedDict[str, Damage] = OrderedDict()
        self.reads: Counter[DamageKind] = Counter()
        """How many reads ended at a damaged object."""

    def record(
        self, key: str, kind: DamageKind, what: str, *, stream_id: int, offset: int, now_s: float
    ) -> tuple[Damage, bool]:
        """Note that a read ended at `key`. Return what is known of the object, and whether to log
        it now.
        """
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
        """Whether a read ended at `key` for the same reason within the last `KNOWN_S`."""
        known = self._damages.get(key)
        return known is not None and known.kind == kind and now_s - known.last_s < KNOWN_S

    def __len__(self) -> int:
        return len(self._damages)

    def forget_range(self, stream_id: int, start: int, end: int) -> None:
        """Note that [start, end) was read: forget objects at which the last read ended in that
        range.
        """
        for key in [
            item.key
            for item in self._damages.values()
            if item.stream_id == stream_id and start <= item.offset < end
        ]:
            del self._damages[key]

    def listed(self, now_s: float) -> list[Damage]:
        """Return what was found within `KEPT_S`, the latest first."""
        self._forget(now_s)
        return list(reversed(self._damages.values()))

    def _forget(self, now_s: float) -> None:
        while self._damages:
            oldest = next(iter(self._damages.values()))
            if now_s - oldest.last_s < KEPT_S:
                return
            self._damages.popitem(last=False)
