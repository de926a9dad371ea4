"""Decide how to proceed after a commit has failed or its outcome is unknown. Pure.

Files are committed only to a table with the offsets that they were planned from, so each batch is
written once: if two runs compete, the second one reads the new offsets and deletes its files. A
commit in progress requires its base version, so it succeeds before the next commit or never.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto

from penstock.lake.table.model import Commit, FileEntry, TableState


class Verdict(Enum):
    COMMITTED = auto()
    """The commit happened."""

    AGAIN = auto()
    """The commit did not happen. Commit the same files on top of the current table."""

    REPLAN = auto()
    """The commit did not happen, and its files are wrong or too old: delete them and plan again
    from the table's offsets.
    """


def verdict(commit: Commit, found: TableState, live: Iterable[FileEntry] | None = None) -> Verdict:
    """Decide based on the state of the table after the failure. `live`: the files of the table,
    needed if the commit removes some. If rows of the removed files were deleted in the meantime,
    plan again, because these rows are still in the rewritten files.
    """
    if commit.commit_id in found.commit_ids:
        return Verdict.COMMITTED
    if not found.is_where(commit.base):
        return Verdict.REPLAN
    if commit.removed:
        assert live is not None, "files are removed: say which are there"
        if not versions_of(commit.removed) <= versions_of(live):
            return Verdict.REPLAN
    return Verdict.AGAIN


def versions_of(files: Iterable[FileEntry]) -> set[tuple[str, frozenset[str]]]:
    """Return the paths of files, each with the paths of the files that delete rows of it."""
    return {(file.path, file.delete_paths) for file in files}


def on_top_of(found: TableState, commit: Commit, *, is_rewrite: bool) -> Commit:
    """Return the same commit on top of `found`. A rewrite keeps the current offsets, even if
    batches were added in the meantime.
    """
    if is_rewrite:
        commit = replace(commit, offsets=found.offsets, batch_id=found.batch_id)
    return replace(commit, base=found)
