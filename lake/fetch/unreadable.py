"""Collect unreadable records that a reader skips.

The first `KEPT_MAX` errors are kept; all others are only counted.
"""

from collections.abc import Callable
from threading import Lock
from typing import Final

from penstock.lake.fetch.errors import ReadError

RAISE: Final = "raise"
SKIP: Final = "skip"
DEAD_LETTER: Final = "dead-letter"

KEPT_MAX: Final = 1_000

OnUnreadable = Callable[[ReadError], None]
"""Called for records that cannot be read. If it returns, their offsets are skipped."""


def raise_unreadable(error: ReadError) -> None:
    """Raise the error, because every record must be read."""
    raise error


def check_on_error(value: str, *others: str) -> str:
    """Return the value of an `on_error` option. Raise ValueError unless it is `raise`, `skip` or
    another accepted value.
    """
    allowed = (RAISE, SKIP, *others)
    if value not in allowed:
        raise ValueError(f"on_error {value!r} is not allowed: {', '.join(allowed)}")
    return value


class UnreadableRecords:
    """The offsets that one pass skipped.

    Attributes:
        count: The number of offsets.
        errors: The first 1,000 `ReadError`s, with topic, partition, offset, end_offset and what.
    """

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[ReadError] = []
        self._lock = Lock()

    def add(self, error: ReadError) -> None:
        """Count the offsets of an error. Any thread may call it."""
        assert error.end_offset is not None, "damaged objects are never left out"
        with self._lock:
            self.count += error.end_offset - error.offset
            if len(self.errors) < KEPT_MAX:
                self.errors.append(error)

    def __bool__(self) -> bool:
        return bool(self.count)

    def __str__(self) -> str:
        if not self.errors:
            return "no records were left out"
        first = self.errors[0]
        return (
            f"{first.topic}: {self.count:,} offsets cannot be read and are left out, the first at"
            f" partition {first.partition}, offset {first.offset}: {first.what}"
        )
