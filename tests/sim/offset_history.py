"""Check committed offsets that readers receive against the commits and their responses.

The offset of a group and partition is a linearizable register with unique values (Herlihy and
Wing). A commit takes effect between request and response; without a response at any later time, or
never. No offset exists before the first commit, after a deletion and after retention.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True, eq=False)
class Change:
    """A commit, or a deletion (value -1). ended_s: it has taken effect by then."""

    value: int
    began_s: float
    ended_s: float = inf
    is_refused: bool = False
    follows: "Change | None" = None
    """The deletion that was sent right before over the same connection."""
    next_of_member: "Change | None" = None
    """The next commit of the same member and epoch, after which this one cannot take effect."""


@dataclass(slots=True)
class OffsetHistory:
    """The offset of one partition in one group. kept_s: younger commits do not expire."""

    name: str
    kept_s: float
    fail: Callable[[str], None]
    commits: dict[int, Change] = field(default_factory=dict[int, Change])
    deletions: list[Change] = field(default_factory=list[Change])
    _given: tuple[int, float] = (-1, -inf)
    """The value of the newest read, and the end of that read."""
    _gone_s: dict[int, float] = field(default_factory=dict[int, float])
    """Replaced values, with the time by which a reader had seen that they were replaced."""

    def commit(self, now_s: float) -> Change:
        value = len(self.commits)
        self.commits[value] = Change(value, now_s)
        return self.commits[value]

    def delete(self, now_s: float) -> Change:
        self.deletions.append(Change(-1, now_s))
        return self.deletions[-1]

    def read(self, value: int, began_s: float, ended_s: float) -> None:
        """Check an offset that a reader got, or -1 for none."""
        if value < 0:
            self._read_nothing(began_s, ended_s)
        else:
            self._read_value(value, began_s, ended_s)
        given, given_s = self._given
        if began_s > given_s:
            if given not in {-1, value}:
                self._gone_s.setdefault(given, ended_s)
            self._given = (value, ended_s)

    def _read_value(self, value: int, began_s: float, ended_s: float) -> None:
        change = self.commits.get(value)
        if change is None or change.began_s > ended_s:
            self.fail(f"{self.name}: offset {value} is read, it was not committed")
            return
        if change.is_refused:
            self.fail(f"{self.name}: offset {value} is read, its commit was refused")
        if self._gone_s.get(value, inf) < began_s:
            self.fail(
                f"{self.name}: offset {value} is read again, after another one, or none, was read"
            )
        later = change.next_of_member
        if later is not None and later.ended_s < began_s and not later.is_refused:
            self.fail(f"{self.name}: offset {value} is read, its member committed {later.value}")
        for newer in (*self.commits.values(), *self.deletions):
            if change.ended_s < newer.began_s and newer.ended_s < began_s and not newer.is_refused:
                self.fail(f"{self.name}: offset {value} is read, {newer} was acknowledged later")
        change.ended_s = min(change.ended_s, ended_s)

    def _read_nothing(self, began_s: float, ended_s: float) -> None:
        for commit in self.commits.values():
            is_before = commit.ended_s < began_s and not commit.is_refused
            if is_before:
                self._gone_s.setdefault(commit.value, ended_s)
            is_young = ended_s - commit.began_s < self.kept_s
            if (
                is_before
                and is_young
                and not any(self._may_follow(deletion, commit) for deletion in self.deletions)
            ):
                self.fail(f"{self.name}: no offset is read, {commit} was acknowledged")

    @staticmethod
    def _may_follow(deletion: Change, commit: Change) -> bool:
        return (
            not deletion.is_refused
            and deletion.ended_s >= commit.began_s
            and commit.follows is not deletion
        )


class Generations:
    """Generations of one group: a commit with a generation is refused if a later generation was
    durable before it was sent. No offset is deleted while a member subscribes to its topic.
    """

    def __init__(self, name: str, fail: Callable[[str], None]) -> None:
        self._name = name
        self._fail = fail
        self._synced: list[tuple[float, float, int]] = []
        """(request, response, generation) of successful SyncGroup requests:
        their generation is durable.
        """
        self._deleted: list[tuple[float, float]] = []
        """(request, response) of OffsetDelete requests that deleted offsets."""

    def synced(self, began_s: float, ended_s: float, generation: int) -> None:
        self._synced.append((began_s, ended_s, generation))

    def offsets_deleted(self, began_s: float, ended_s: float) -> None:
        self._deleted.append((began_s, ended_s))

    def committed(self, joined_s: float, generation: int, began_s: float) -> None:
        """Check an acknowledged commit that a member sent at `began_s`, and whose generation was
        completed at `joined_s`.

        Recreated groups start again with generation 1, so only generations synced after the member
        had joined count.
        """
        for sync_began_s, sync_ended_s, newer in self._synced:
            if newer > generation and sync_began_s > joined_s and sync_ended_s < began_s:
                self._fail(
                    f"{self._name}: a commit of generation {generation} is acknowledged, generation"
                    f" {newer} was there before"
                )
        for deleted_s, responded_s in self._deleted:
            if joined_s < deleted_s and responded_s < began_s:
                self._fail(
                    f"{self._name}: offsets were deleted, a member of generation {generation} was"
                    " subscribed all the time"
                )
