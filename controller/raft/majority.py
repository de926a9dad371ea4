"""Count majorities of voters. The arguments may contain other nodes, which are ignored."""

from collections.abc import Mapping, Sequence
from enum import Enum


class Tally(Enum):
    PENDING = 0
    WON = 1
    LOST = 2


def majority(voters: int) -> int:
    """Return the smallest number of voters such that any two groups of this size overlap."""
    return voters // 2 + 1


def reached(voters: Sequence[int], values: Mapping[int, int], absent: int = 0) -> int:
    """Return the largest value that a majority has reached."""
    ordered = sorted((values.get(voter, absent) for voter in voters), reverse=True)
    return ordered[majority(len(ordered)) - 1]


def tally(voters: Sequence[int], votes: Mapping[int, bool]) -> Tally:
    """Return the state of an election."""
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    needed = majority(len(voters))
    if granted >= needed:
        return Tally.WON
    return Tally.LOST if refused > len(voters) - needed else Tally.PENDING
