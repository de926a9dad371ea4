"""Planted bugs in restored data directories, for `tests.sim.mutants`.

Two rules have only live tests, because 60 seeds do not find violations: no image is served while a
leadership ends (test_controller_quorum_live), and no follower accepts an older snapshot
(test_controller_rpc).
"""

from collections.abc import Callable
from typing import Any

import penstock.controller.raft.promises as promises
from penstock.controller.raft.journal import Journal
from penstock.controller.raft.node import RaftNode

Patch = tuple[Any, str, Any]


def _restored_disk_votes() -> list[Patch]:
    """The contents of a disk are not compared with its promises. Only the directory's own files are
    checked.
    """
    return [(promises, "forgotten", lambda _start, _promised: "")]


def _emptied_journal_votes() -> list[Patch]:
    """Neither the directory nor the other controllers detect that the journal is a
    different one.
    """

    def open_(self: Journal) -> Any:
        owner = self._owner
        self._owner = _Unknowing(owner.directory_id)
        try:
            return real(self)
        finally:
            self._owner = owner

    real = Journal.open
    return [(Journal, "open", open_), (promises.Promises, "refusal", lambda *_: "")]


class _Unknowing:
    journal_number = 0

    def __init__(self, directory_id: str) -> None:
        self.directory_id = directory_id

    def record_journal(self, number: int) -> None:
        raise AssertionError(f"segment {number} is begun while the journal is read")


def _hears_at_once() -> list[Patch]:
    """A controller votes before the controllers that remember more than its disk can object."""
    return [(RaftNode, "_ignores_messages", property(lambda _: False, lambda _self, _value: None))]


ROLLBACK_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "restored_disk_votes": _restored_disk_votes,
    "emptied_journal_votes": _emptied_journal_votes,
    "hears_at_once": _hears_at_once,
}
