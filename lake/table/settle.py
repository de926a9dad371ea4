"""Exactly once, as one decision: what to do after a commit that failed, or of which nobody knows
whether it happened.

Invariant: files are committed only to a table whose offsets are those from which they were planned.
Two runs may write the same offsets, one commits; whoever comes second finds other offsets and
throws its files away. A commit that is still under way cannot
surprise: it is bound to the version it was made for, so it comes first or never. Must not do I/O.
Source: ADR 0021.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto

from lake.table.model import Commit, TableState


class Verdict(Enum):
    COMMITTED = auto()
    """It happened."""

    AGAIN = auto()
    """It did not; the same files on top of what the table is now are right."""

    REPLAN = auto()
    """It did not, and these files are wrong or late: delete them and begin anew from the table's
    offsets.
    """


def verdict(commit: Commit, found: TableState, live_paths: Iterable[str] | None = None) -> Verdict:
    """found: the table as read after the failure. live_paths: its files, needed if the commit
    removes some.
    """
    if commit.commit_id in found.commit_ids:
        return Verdict.COMMITTED
    if dict(found.offsets) != dict(commit.base.offsets) or found.batch_id != commit.base.batch_id:
        return Verdict.REPLAN
    if commit.removed:
        assert live_paths is not None, "files are removed: say which are there"
        if not {file.path for file in commit.removed} <= set(live_paths):
            return Verdict.REPLAN
    return Verdict.AGAIN


def rebased(commit: Commit, found: TableState) -> Commit:
    """The same commit on top of `found`, of which the verdict was AGAIN."""
    return replace(commit, base=found)


def rewrite_of(commit: Commit, found: TableState) -> Commit:
    """A rewrite on top of `found`: it changes no offsets, whatever was added meanwhile."""
    return replace(commit, base=found, offsets=found.offsets, batch_id=found.batch_id)
