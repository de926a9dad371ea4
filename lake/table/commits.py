"""Repeat a commit until its outcome is known: it is in the table or never will be.

Invariant: regardless of errors, a batch is in the table once. Attempts are bounded. A process that
ends in between leaves either a commit or files that no commit references. Source: `settle`,
docs/design/tables.md.
"""

import time
from typing import Final

from penstock.base.log import get_logger
from penstock.lake.table.errors import CatalogUnavailable, CommitConflict, CommitUnknown
from penstock.lake.table.model import Commit, TableState
from penstock.lake.table.settle import Verdict, on_top_of, verdict
from penstock.lake.table.tables import ExportTable

_log = get_logger(__name__)

TRIES_MAX: Final = 20
WAIT_MS_MIN: Final = 50
WAIT_MS_MAX: Final = 5_000


def commit_until_known(table: ExportTable, commit: Commit, *, is_rewrite: bool = False) -> bool:
    """Commit a batch, or files that replace files with the same rows. Return True if the commit is
    in the table, and False if another commit changed the table, so that the batch must be planned
    again. Raise CommitUnknown if the outcome cannot be determined.
    """
    for attempt in range(TRIES_MAX):
        try:
            table.commit(commit)
        except (CommitConflict, CommitUnknown) as error:
            if attempt == TRIES_MAX - 1:
                raise
            _log.info(
                "table_commit_unacknowledged",
                table=table.name,
                commit_id=commit.commit_id,
                error=str(error)[:300],
            )
            if attempt:
                _wait(attempt)
        else:
            return True
        found = _looked_up(table)
        live = table.files() if commit.removed else []
        again = on_top_of(found, commit, is_rewrite=is_rewrite)
        match verdict(again if is_rewrite else commit, found, live):
            case Verdict.COMMITTED:
                return True
            case Verdict.REPLAN:
                return False
            case Verdict.AGAIN:
                commit = again
    raise AssertionError("the last attempt raises")


def _looked_up(table: ExportTable) -> TableState:
    """Return the state that shows the outcome. Retry if the catalog does not respond, for example
    during a restart.
    """
    for attempt in range(TRIES_MAX):
        try:
            return table.state()
        except CatalogUnavailable as error:
            if attempt == TRIES_MAX - 1:
                raise CommitUnknown(
                    f"it is unknown whether the last commit to table {table.name} succeeded:"
                    f" {error}; the next run determines that, without losing or repeating records"
                ) from error
            _log.warning("table_commit_lookup_failed", table=table.name, error=str(error)[:300])
            _wait(attempt)
    raise AssertionError("the last attempt raises")


def _wait(attempt: int) -> None:
    time.sleep(min(WAIT_MS_MAX, WAIT_MS_MIN << attempt) / 1_000)
