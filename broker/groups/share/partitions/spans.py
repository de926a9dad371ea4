"""A range of offsets of a share partition with records in the same state."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.groups.share.state.model import ACKNOWLEDGED, ARCHIVED, AVAILABLE

ACQUIRED: Final = 1
"""The state of records that are locked for a member. The other states have the numbers of the
stored delivery states.
"""
UNCHANGED: Final = -1
NO_MEMBER: Final = ""

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Acknowledgment types on the wire. GAP marks an offset at which the member found no record."""

OUTCOMES: Final = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}


class Acknowledgement(NamedTuple):
    """The acknowledgment of the records in [first_offset, last_offset], with one type for all of
    them or one per offset.
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
    """The offsets [first, end), whose records are in the same state. While a change is being
    written (`target` is set), the span must not be split or changed.
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
        """Number of deliveries, including the current one if the records are locked."""
        self.member_id = NO_MEMBER
        self.deadline = 0.0
        """When the lock expires."""
        self.target = UNCHANGED
        """The state that is being written, or UNCHANGED."""
        self.unstored_count = 0
        """Number of deliveries whose outcome could not be stored. If 0, the stored delivery count
        is correct.
        """
        self.origin_count = end - first
        """Number of records in the span from which this one was cut. It determines how many records
        are delivered together after repeated failures.
        """

    def __repr__(self) -> str:
        return (
            f"Span([{self.first}, {self.end}), {self.state}->{self.target}, {self.count},"
            f" {self.member_id!r})"
        )

    @property
    def is_done(self) -> bool:
        """Return whether the records are durably done, meaning that they will never be delivered
        again.
        """
        return self.target == UNCHANGED and self.state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def will_be_done(self) -> bool:
        """Return whether the records will be done after the pending write succeeds."""
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
        """Discard the target state after a failed write."""
        self.target = UNCHANGED

    def cut(self, offset: int) -> "Span":
        """Shorten this span to [first, offset) and return the rest."""
        rest = Span(offset, self.end, self.state, self.count)
        rest.member_id = self.member_id
        rest.deadline = self.deadline
        rest.unstored_count = self.unstored_count
        rest.origin_count = self.origin_count
        self.end = offset
        return rest
