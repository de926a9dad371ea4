"""The port through which the export sees a table: its state, its files, one conditional commit.

Invariant: a commit happens whole or not at all, and only on top of the version that it names.
Implementations never retry a commit: the next step depends on the offsets that are found then
(`settle`). Source: docs/design/tables.md.
"""

from typing import Protocol

from penstock.lake.arrow.pyarrow_untyped import Schema
from penstock.lake.table.files import FilePlace
from penstock.lake.table.model import (
    Commit,
    FileEntry,
    Layout,
    TableState,
)
from penstock.lake.table.pyarrow_untyped import Table


class ExportTable(Protocol):
    """One table, for one thread. Call `state` first: the other methods describe the table as it was
    then.
    """

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout:
        """The layout of the existing table. Raise InvalidTable if it does not exist."""
        ...

    def state(self) -> TableState:
        """Read the current state, or that of no commits if the table does not exist."""
        ...

    def prepare(self, schema: Schema) -> None:
        """Create the table, or add the columns that it lacks. Raise InvalidTable if a column has
        another type.
        """
        ...

    def files(self) -> list[FileEntry]:
        """Return all files of the version that was read last."""
        ...

    def place(self) -> FilePlace:
        """Return where executors write. Call `prepare` first."""
        ...

    def commit(self, commit: Commit) -> None:
        """Try once. Raise CommitConflict (it did not happen) or CommitUnknown (it may have)."""
        ...

    def read(self, bytes_max: int) -> Table:
        """Return all rows. Raise InvalidTable if the files are larger than `bytes_max`."""
        ...
