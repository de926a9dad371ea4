"""The interface of tables for the export: state, files, and one conditional commit.

Invariant: a commit is atomic and succeeds only on top of its base version. Implementations never
retry a commit, because the next step depends on the offsets at that time (`settle`). Source:
docs/design/tables.md.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.base.partition_spec import partition_text
from penstock.lake.arrow.pyarrow_untyped import Schema
from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.files import FilePlace
from penstock.lake.table.model import (
    LAYOUT_VERSION,
    Commit,
    FileEntry,
    Layout,
    Maintained,
    Retention,
    TableState,
)


class ExportTable(Protocol):
    """One table, for one thread. Call `state` first, because the other methods describe the table
    as of that call.
    """

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout:
        """The layout of the table, or the requested layout if the table does not exist. Raise
        InvalidTable if
        neither is known.
        """
        ...

    def state(self) -> TableState:
        """Read the current state. If the table does not exist, return the state without commits."""
        ...

    def upgrade(self) -> None:
        """Upgrade the layout of the table if it exists and can be upgraded. Raise InvalidTable."""
        ...

    def prepare(self, schema: Schema) -> None:
        """Create the table, upgrade its layout, and add missing columns. Raise InvalidTable if a
        column has a different type, and InvalidSchema for a reserved name.
        """
        ...

    def files(self) -> list[FileEntry]:
        """Return all files of the version that was read last."""
        ...

    def place(self) -> FilePlace:
        """The location that executors write to. Call `prepare` first."""
        ...

    def commit(self, commit: Commit) -> None:
        """Try once. Raise CommitConflict (it did not happen) or CommitUnknown (it may have)."""
        ...

    def maintain(self, retention: Retention, now_ms: int, *, dry_run: bool = False) -> Maintained:
        """Remove replaced versions and unused files. This may run during exports and queries. An
        interrupted maintenance is continued by the next one. Raise TableError.
        """
        ...


def delete_unused(table: ExportTable, files: Sequence[FileEntry]) -> None:
    """Delete files of a commit that is not in the table, as of the last `state`. Files in the table
    are kept: the commit may have happened so long ago that the table no longer records its id.
    """
    used = {file.path for file in table.files()} if files else set[str]()
    table.place().delete([file for file in files if file.path not in used])


UPSERT: Final = "upsert"
APPEND: Final = "append"


def mode_of(layout: Layout) -> str:
    """Return the mode in the form that is stored in tables."""
    return UPSERT if layout.upsert else APPEND


def check_mode(name: str, wanted: Layout, found: Layout) -> None:
    """Raise InvalidTable if the table was created for the other mode."""
    if wanted.upsert != found.upsert:
        raise InvalidTable(
            f"table {name} was created with --mode {mode_of(found)}, partitioned by"
            f" {partition_text(found.fields)}: use that mode, or another table"
        )


def check_layout_version(name: str, version: int) -> None:
    """Raise InvalidTable for a table that a newer version of Penstock has written."""
    if version > LAYOUT_VERSION:
        raise InvalidTable(
            f"table {name} has layout version {version}, and this version of Penstock supports up"
            f" to {LAYOUT_VERSION}: use the newer version of Penstock that wrote the table"
        )
