"""A range of offsets of a share partition whose records are in the same state."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.groups.share.state.model import ACKNOWLEDGED, ARCHIVED, AVAILABLE

ACQUIRED: Final = 1
"""Locked for one member. Stored states have the other numbers."""
UNCHANGED: Final = -1
NO_MEMBER: Final = ""

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Acknowledgment types on the wire. A gap is an offset at which the member found no record."""

OUTCOMES: Final = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}


class Acknowledgement(NamedTuple):
    """The outcome of the records of [first_offset, last_offset]: one type for all of them, or one
    for each offset.
    """

    first_offset: int
    last_offset: int
    types: Sequence[int]


class AcquiredRange(NamedTuple):
    """Records that a member has acquired."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Span:
    """[first, end), in one state. While a span is being written (`target`), nobody else splits or
    changes it until the write has an outcome.
    """

    __slots__ = (
        "count",
        "deadline",
        "end",
        "first",
        "member_id",
        "origin_count",
        "state",
        "target",
        "unstored_count",
    )

    def __init__(self, first: int, end: int, state: int, count: int) -> None:
        self.first = first
        self.end = end
        self.state = state
        self.count = count
        """Deliveries so far, including that of the lock."""
        self.member_id = NO_MEMBER
        self.deadline = 0.0
        """When the lock expires."""
        self.target = UNCHANGED
        """The state that is being written."""
        self.unstored_count = 0
        """Deliveries whose end could not be stored; 0: the stored count is correct."""
        self.origin_count = end - first
        """Records of the span from which this one was cut. It determines how many repeatedly
        failing records are delivered together.
        """

    def __repr__(self) -> str:
        return (
            f"Span([{self.first}, {self.end}), {self.state}->{self.target}, {self.count},"
            f" {self.member_id!r})"
        )

    @property
    def is_done(self) -> bool:
        """Return whether the records are never delivered again, and this is stored."""
        return self.target == UNCHANGED and self.state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def will_be_done(self) -> bool:
        """Return whether the records are never delivered again once the pending write succeeds."""
        state = self.state if self.target == UNCHANGED else self.target
        return state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def is_available(self) -> bool:
        return self.state == AVAILABLE and self.target == UNCHANGED

    def lock(self, member_id: str, deadline: float) -> None:
        """Lock the records for a member, which counts as a delivery."""
        self.state = ACQUIRED
        self.count += 1
        self.member_id = member_id
        self.deadline = deadline

    def finish(self) -> None:
        """Apply the state that was written."""
        self.state = self.target
        self.target = UNCHANGED
        self.member_id = NO_MEMBER

    def take_back(self) -> None:
        """Restore the state from before the failed write."""
        self.target = UNCHANGED

    def cut(self, offset: int) -> "Span":
        """Keep [first, offset) and return the rest."""
        rest = Span(offset, self.end, self.state, self.count)
        rest.member_id = self.member_id
        rest.deadline = self.deadline
        rest.unstored_count = self.unstored_count
        rest.origin_count = self.origin_count
        self.end = offset
        return rest
