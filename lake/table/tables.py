"""The port through which the export sees a table: its state, its files, one conditional commit.

Invariant: a commit happens whole or not at all, and only on top of the version that it names.
Implementations never retry a commit: what to do next depends on the offsets that are found then
(`settle`). Source: ADR 0021.
"""

from typing import Protocol

from lake.arrow.pyarrow_untyped import Schema
from lake.table.files import FilePlace
from lake.table.model import (
    Commit,
    FileEntry,
    Layout,
    TableState,
)
from lake.table.pyarrow_untyped import Table


class ExportTable(Protocol):
    """One table. Serves one thread. `state` first: the others speak of the table as it was then."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout:
        """Of the table as it is. Raises InvalidTable if it does not exist."""
        ...

    def state(self) -> TableState:
        """As of now; the state of no commits if the table does not exist."""
        ...

    def prepare(self, schema: Schema) -> None:
        """Create the table, or add the columns that it lacks. Raises InvalidTable if a column has
        another type.
        """
        ...

    def files(self) -> list[FileEntry]:
        """All files of the version that was read last."""
        ...

    def place(self) -> FilePlace:
        """Where executors write. After `prepare`."""
        ...

    def commit(self, commit: Commit) -> None:
        """Once. Raises CommitConflict (it did not happen), CommitUnknown (it may have)."""
        ...

    def read(self, bytes_max: int) -> Table:
        """All rows. Raises InvalidTable if the files are larger than that."""
        ...
