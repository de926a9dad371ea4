"""Collect events of a run from all threads: as the history to check, and as lines in a file for
debugging.

Invariants: the first violations are kept with their times, and the file contains all of them. A
violation raises no exception in a client's thread.
"""

import threading
import time
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Final

from penstock.deploy.local.plan import SESSION_TIMEOUT_MS
from tests.support.anomalies import Ack, Operation, Write
from tests.support.history import History, Part

LEASE_S: Final = SESSION_TIMEOUT_MS / 1_000
"""The time for which a broker may serve without a controller: its session timeout."""
_VIOLATIONS_KEPT_MAX: Final = 50
_ACKS_EVERY_S: Final = 0.05
"""The minimum time between two recorded acknowledgments of a partition, short enough to detect
stale reads.
"""


class Record:
    """The events of a run. All times are seconds since `began_at`, a value of time.monotonic()."""

    def __init__(self, path: Path) -> None:
        self.began_at = time.monotonic()
        self.violations: list[str] = []
        self.history = History(self.violate)
        self._lock = threading.RLock()
        self._file = path.open("w")
        self._last_ack_at: dict[Part, float] = {}
        self._longest: dict[Part, tuple[float, float]] = {}
        self._acked_number: dict[tuple[bytes, Part], int] = {}
        self._acks: dict[Part, list[tuple[float, int]]] = {}
        self.operations: list[Operation] = []
        """The input of `tests.support.anomalies`: transactions, polls of their records, offsets of
        groups, and ends of logs.
        """
        self.faults: Counter[str] = Counter()

    def now(self) -> float:
        return time.monotonic() - self.began_at

    def violate(self, what: str) -> None:
        with self._lock:
            self.tell(f"VIOLATION {what}", now=True)
            if len(self.violations) < _VIOLATIONS_KEPT_MAX:
                self.violations.append(f"{self.now():.2f} s: {what}")

    def tell(self, line: str, *, now: bool = False) -> None:
        """Write the line to the file only. now: flush immediately instead of after some thousand
        bytes.
        """
        with self._lock:
            if not self._file.closed:
                self._file.write(f"{self.now():.3f} {line}\n")
                if now:
                    self._file.flush()

    def sent(self, part: Part, identity: bytes) -> None:
        with self._lock:
            self.history.sent(part, (identity,))

    def acknowledged(self, part: Part, producer: bytes, number: int, offset: int) -> None:
        with self._lock:
            now = self.now()
            before = self._last_ack_at.get(part, now)
            self._last_ack_at[part] = now
            if now - before > self._longest.get(part, (0.0, 0.0))[0]:
                self._longest[part] = (now - before, before)
            key = (producer, part)
            self._acked_number[key] = max(number, self._acked_number.get(key, -1))
            identity = b"%b/%d/%d" % (producer, part[1], number)
            self.tell(f"ack {part[0]}-{part[1]} {offset} {identity.decode()}")
            self.history.acknowledged(part, offset, identity)
            self._keep_ack(part, now, offset)

    def _keep_ack(self, part: Part, now: float, offset: int) -> None:
        acks = self._acks.setdefault(part, [])
        if offset >= 0 and (
            not acks or (now - acks[-1][0] >= _ACKS_EVERY_S and offset > acks[-1][1])
        ):
            acks.append((now, offset))
            self.operations.append(Ack(part, offset, now))

    def acked_end(self, part: Part, at_s: float) -> int:
        """Return the end offset of the records acknowledged by this time, or 0."""
        with self._lock:
            acks = self._acks.get(part, [])
            count = bisect_right(acks, (at_s, 0))
            return acks[count - 1][1] + 1 if count else 0

    def operate(self, operation: Operation) -> None:
        """Record the operation after it has ended."""
        with self._lock:
            self.operations.append(operation)
            self.tell(str(operation), now=isinstance(operation, Write))

    def acked_number(self, part: Part, producer: bytes) -> int:
        """Return the highest acknowledged number of the producer, or -1."""
        with self._lock:
            return self._acked_number.get((producer, part), -1)

    def read(self, reader: str, part: Part, offset: int, identity: bytes) -> None:
        with self._lock:
            self.tell(
                f"read by {reader} {part[0]}-{part[1]} {offset} {identity.decode(errors='replace')}"
            )
            self.history.read(part, offset, identity)

    def longest_gap(self) -> tuple[float, float, Part | None]:
        """Return (seconds, start, partition) of the longest period without an acknowledgment of a
        partition.
        """
        with self._lock:
            found = max(((*gap, part) for part, gap in self._longest.items()), default=None)
            return found or (0.0, 0.0, None)

    def close(self) -> None:
        with self._lock:
            self._file.close()
