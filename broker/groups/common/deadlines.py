"""The deadlines of group members for heartbeats, revocations, JoinGroup and SyncGroup, in
milliseconds. Pure.

They are kept only in memory, so a new coordinator restarts them.
"""

from typing import Self


class Deadlines:
    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        """When the next heartbeat of each member is due."""
        self._revocations: dict[str, int] = {}
        """The time by which each member must have revoked its partitions."""
        self._joins: dict[str, int] = {}
        self._syncs: dict[str, int] = {}
        """The time by which each classic member must have sent SyncGroup; `_joins` contains the
        deadlines for JoinGroup.
        """

    @property
    def member_ids(self) -> set[str]:
        return set(self._sessions)

    def copy(self) -> Self:
        copied = type(self)()
        copied._sessions = dict(self._sessions)
        copied._revocations = dict(self._revocations)
        copied._joins = dict(self._joins)
        copied._syncs = dict(self._syncs)
        return copied

    def next_ms(self) -> int | None:
        """Return the first deadline, or None if there are no members. This takes O(members)."""
        return min(
            (
                min(deadlines.values())
                for deadlines in (self._sessions, self._revocations, self._joins, self._syncs)
                if deadlines
            ),
            default=None,
        )

    def passed(self, now_ms: int) -> set[str]:
        """Return the members with an expired deadline. This takes O(members)."""
        return {
            member_id
            for deadlines in (self._sessions, self._revocations, self._joins, self._syncs)
            for member_id, deadline_ms in deadlines.items()
            if deadline_ms <= now_ms
        }

    def await_heartbeat(self, member_id: str, deadline_ms: int) -> None:
        self._sessions[member_id] = deadline_ms

    def await_revocation(self, member_id: str, deadline_ms: int) -> None:
        self._revocations[member_id] = deadline_ms

    def revoked(self, member_id: str) -> None:
        self._revocations.pop(member_id, None)

    def await_join(self, member_id: str, deadline_ms: int) -> None:
        """Set the deadline for JoinGroup, unless the member already has one."""
        self._joins.setdefault(member_id, deadline_ms)

    def await_sync(self, member_id: str, deadline_ms: int) -> None:
        """Replace the deadline for JoinGroup, which the member has sent, with one for SyncGroup."""
        self._joins.pop(member_id, None)
        self._syncs[member_id] = deadline_ms

    def synced(self, member_id: str) -> None:
        self._syncs.pop(member_id, None)

    def remove(self, member_id: str) -> None:
        for deadlines in (self._sessions, self._revocations, self._joins, self._syncs):
            deadlines.pop(member_id, None)
