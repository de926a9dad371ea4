"""A table stored as a directory of Parquet files (`data/`) with numbered commits
(`_penstock_log/`).

Commit n + 1 is written with If-None-Match after reading commit n, so one of two writers wins. Every
`WHOLE_EVERY`th commit lists all files, so readers begin there. Nothing is overwritten.
docs/reference/table.md describes the format. Source: Delta Lake's log, simplified.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from penstock.base.partition_spec import (
    DAY,
    IDENTITY,
    PartitionField,
    parse_partition_by,
    partition_text,
)
from penstock.lake.arrow.background import background
from penstock.lake.arrow.pyarrow_untyped import Buffer, Schema, Table, pa
from penstock.lake.table.errors import CommitConflict, CommitUnknown, InvalidTable
from penstock.lake.table.files import FilePlace, fitted
from penstock.lake.table.model import (
    LAYOUT_VERSION,
    OLDER_PARTITION,
    PARTITION,
    Commit,
    FileEntry,
    Group,
    Layout,
    Maintained,
    Retention,
    TableState,
)
from penstock.lake.table.partition_values import check_partition_fields, directory_of
from penstock.lake.table.pyarrow_untyped import Footer, pq
from penstock.lake.table.rows import refuse_names
from penstock.lake.table.tables import UPSERT, check_layout_version, check_mode, mode_of
from penstock.lake.table.values import refuse_same_names
from penstock.objectstore.errors import ConditionalConflict, ObjectStoreError, PreconditionFailed
from penstock.objectstore.ports import ObjectInfo, ObjectStore

LOG: Final = "_penstock_log/"
WHOLE_EVERY: Final = 50
_DAY: Final = "_day"
_DEADLINE_S: Final = 300.0
_MAINTENANCE_S: Final = 3_600.0
_READS_AT_ONCE: Final = 16

VERSIONS_MS_MIN: Final = 172_800_000
"""Minimum age of removed log commits, two days. A batch may take one day, and its commit would
wrongly succeed if the version after its base were missing.
"""

_T = TypeVar("_T")


class LoggedFile(msgspec.Struct, frozen=True):
    """A file in the log. The format is public."""

    path: str
    rows: int
    bytes: int
    group: tuple[int | bool | str | None, ...]
    first: tuple[int, int]


class LoggedCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit in the log. If it is `whole`, `add` lists all files of the table, and `remove` is
    empty.
    """

    version: int
    commit_id: str
    topic: str
    topic_id: str
    batch_id: int
    offsets: dict[str, int]
    whole: bool
    layout: list[str]
    layout_version: int = 1
    mode: str = ""
    schema: str
    """The Arrow schema in IPC form, in hexadecimal. Readers without Arrow can use the schema in the
    files.
    """

    add: list[LoggedFile]
    remove: list[str]


_Commits = dict[tuple[str, str], LoggedCommit]
"""Commits by key and etag."""


@dataclass(frozen=True, slots=True)
class DirectoryPlace:
    """The location of the table's files. `prefix` ends with a slash."""

    url: str
    prefix: str
    schema: Schema
    layout: Layout

    def put(
        self, name: str, data: Buffer, footer: Footer, group: Group, first: tuple[int, int]
    ) -> FileEntry:
        path = f"data/{self._directory(group)}{name}"
        _run(self.url, lambda store: store.put(self.prefix + path, memoryview(data)))
        partition = self.layout.partition_of(group)
        return FileEntry(path, footer.num_rows, len(data), group, first, kafka_partition=partition)

    def read(self, file: FileEntry, columns: list[str] | None = None) -> Table:
        raw = _run(self.url, lambda store: store.get(self.prefix + file.path))
        names = [field.name for field in self.schema] if columns is None else columns
        found = pq.read_table(pa.BufferReader(raw), columns=columns)
        return fitted(found, pa.schema([self.schema.field(name) for name in names]))

    def delete(self, files: list[FileEntry]) -> None:
        keys = [self.prefix + file.path for file in files]
        _run(self.url, lambda store: store.delete(keys))

    def _directory(self, group: Group) -> str:
        pairs = zip(self.layout.fields, group, strict=True)
        return "".join(
            f"{_path_name(field)}={directory_of(field, value, self.schema)}/"
            for field, value in pairs
        )


class DirectoryTable:
    """A table in the store at `url`, whose keys begin with `name`. `layout` is the layout of a new
    table, and must match that of an existing table; None accepts any.
    """

    def __init__(self, url: str, name: str, layout: Layout | None) -> None:
        self.name = name
        self._url = url
        self._prefix = f"{name}/"
        self._layout = layout
        self._stored: Schema | None = None
        self._wanted: Schema | None = None
        self._version = 0
        self._files: dict[str, FileEntry] = {}

    def state(self) -> TableState:
        commits = _run(self._url, lambda store: _read_log(store, self._url, self._prefix))
        self._files = {}
        for commit in commits:
            if commit.whole:
                self._files = {}
            for path in commit.remove:
                self._files.pop(path, None)
            self._files |= {
                file.path: FileEntry(file.path, file.rows, file.bytes, file.group, file.first)
                for file in commit.add
            }
        if not commits:
            self._version = 0
            return TableState("0")
        last = commits[-1]
        self._version = last.version
        check_layout_version(self.name, last.layout_version)
        found, wanted = _layout_of(last), self._layout
        if wanted is not None:
            check_mode(self.name, wanted, found)
            wanted = wanted.with_partition_column(found.partition_column)
            if not wanted.keeps_existing and not found.has_fields_of(wanted):
                raise InvalidTable(
                    f"table {self.name} is partitioned by {partition_text(found.fields)}, and the"
                    f" partitioning of a Parquet directory cannot change: use the same"
                    " --partition-by, or another table"
                )
        self._layout = found
        self._files = {
            path: replace(file, kafka_partition=found.partition_of(file.group))
            for path, file in self._files.items()
        }
        self._stored = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(last.schema)))
        offsets = {int(partition): offset for partition, offset in last.offsets.items()}
        return TableState(
            str(last.version),
            last.topic,
            last.topic_id,
            last.batch_id,
            offsets,
            frozenset(commit.commit_id for commit in commits),
        )

    def upgrade(self) -> None:
        """Do nothing, because files keep their column names until the directory is recreated."""

    def prepare(self, schema: Schema) -> None:
        fields = self.layout.fields
        names = [_path_name(field) for field in fields if field.transform != IDENTITY]
        refuse_names(schema.names, names, "the path of a file")
        refuse_same_names([*(self._stored or ()), *schema])
        self._wanted = schema
        check_partition_fields(fields, self._schema())

    def _schema(self) -> Schema:
        """Return the schema of the table merged with the prepared one, which the next commit
        stores.
        """
        known = [schema for schema in (self._stored, self._wanted) if schema is not None]
        if not known:
            raise InvalidTable(f"table {self.name} does not exist")
        try:
            return pa.unify_schemas(known)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidTable(
                f"table {self.name} has a column of another type: {error}; export into another"
                " table"
            ) from None

    def files(self) -> list[FileEntry]:
        return list(self._files.values())

    def place(self) -> FilePlace:
        return DirectoryPlace(self._url, self._prefix, self._schema(), self.layout)

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            raise InvalidTable(f"table {self.name} does not exist")
        return self._layout

    def commit(self, commit: Commit) -> None:
        assert int(commit.base.version) == self._version, "state() first"
        version = self._version + 1
        whole = version % WHOLE_EVERY == 0
        removed = [file.path for file in commit.removed]
        kept = (
            [file for file in self._files.values() if file.path not in set(removed)]
            if whole
            else []
        )
        layout = self.layout
        logged = LoggedCommit(
            version=version,
            commit_id=commit.commit_id,
            topic=commit.topic,
            topic_id=commit.topic_id,
            batch_id=commit.batch_id,
            offsets={
                str(partition): offset for partition, offset in sorted(commit.offsets.items())
            },
            whole=whole,
            layout=[_DAY if field == DAY else str(field) for field in layout.fields],
            mode=mode_of(layout),
            layout_version=1 if layout.partition_column == OLDER_PARTITION else LAYOUT_VERSION,
            schema=self._schema().serialize().to_pybytes().hex(),
            add=[
                LoggedFile(
                    file.path, file.row_count, file.size_bytes, _logged(file.group), file.first
                )
                for file in [*kept, *commit.added]
            ],
            remove=[] if whole else removed,
        )
        try:
            key, data = f"{self._prefix}{LOG}{version:020}.json", msgspec.json.encode(logged)
            _run(self._url, lambda store: store.put_if_absent(key, data))
        except PreconditionFailed as error:
            # The earlier commit may be our own attempt, which the caller detects by the commit id
            # in the log.
            raise CommitConflict(str(error)) from error
        except (ConditionalConflict, ObjectStoreError, TimeoutError) as error:
            raise CommitUnknown(str(error)) from error

    def maintain(self, retention: Retention, now_ms: int, *, dry_run: bool = False) -> Maintained:
        self.state()
        self._schema()
        return _run(
            self._url,
            lambda store: _maintain(store, self._prefix, retention, now_ms, dry_run=dry_run),
            _MAINTENANCE_S,
        )


def _layout_of(commit: LoggedCommit) -> Layout:
    column = OLDER_PARTITION if commit.layout_version == 1 else PARTITION
    fields = [
        DAY if text == _DAY else field
        for text in commit.layout
        for field in parse_partition_by(text)
    ]
    is_upsert = commit.mode == UPSERT or (not commit.mode and column in commit.layout)
    return Layout(tuple(fields), is_upsert, column)


def _path_name(field: PartitionField) -> str:
    return _DAY if field == DAY else quote(field.name, safe="")


def _logged(group: Group) -> tuple[int | bool | str | None, ...]:
    """Return values in a form that JSON can represent. They are used only for comparisons."""
    return tuple(
        value.hex()
        if isinstance(value, bytes)
        else str(value)
        if isinstance(value, Decimal)
        else value
        for value in group
    )


def table_names(url: str) -> list[str]:
    """Return the tables of this store whose names have no namespace."""
    return _run(url, _table_names)


def _run(
    url: str,
    use: Callable[[ObjectStore], Coroutine[Any, Any, _T]],
    deadline_s: float = _DEADLINE_S,
) -> _T:
    return background().with_store(url, use, deadline_s)


async def _read_log(store: ObjectStore, url: str, prefix: str) -> list[LoggedCommit]:
    """Read the log from the last whole commit on. Earlier commits are not read again."""
    infos = [info async for info in store.list(f"{prefix}{LOG}")]
    known = _commits.get((url, prefix), {})
    commits = await _read_commits(store, infos[_last_whole(infos) :], known)
    _commits[url, prefix] = commits
    return list(commits.values())


def _last_whole(infos: Sequence[ObjectInfo]) -> int:
    """Return the index of the last whole commit, or of the first commit if there is none.
    Maintenance removes the oldest commits.
    """
    versions = [int(info.key.rpartition("/")[2].removesuffix(".json")) for info in infos]
    found = (index for index, version in enumerate(versions) if version % WHOLE_EVERY == 0)
    return max(found, default=0)


async def _read_commits(
    store: ObjectStore, infos: Sequence[ObjectInfo], known: _Commits
) -> _Commits:
    keys = [(info.key, info.etag) for info in infos]
    turns = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(key: tuple[str, str]) -> LoggedCommit:
        if key in known:
            return known[key]
        async with turns:
            return msgspec.json.decode(await store.get(key[0]), type=LoggedCommit)

    commits = await asyncio.gather(*(read(key) for key in keys))
    return dict(zip(keys, commits, strict=True))


async def _maintain(
    store: ObjectStore, prefix: str, retention: Retention, now_ms: int, *, dry_run: bool
) -> Maintained:
    """Remove commits of the log, then files that the remaining commits do not refer to. Readers
    need only the last whole commit and later ones, so the log may be truncated anywhere before
    that.
    """
    files: list[ObjectInfo] = []
    if retention.orphans_ms is not None:
        before_ms = now_ms - retention.orphans_ms
        files = [
            info
            async for info in store.list(f"{prefix}data/")
            if info.modified_ms < before_ms and info.key.endswith(".parquet")
        ]
    # The log is listed after the files, because one of them may have been committed in the
    # meantime.
    infos = [info async for info in store.list(f"{prefix}{LOG}")]
    current = 0
    if retention.versions_ms is not None:
        since_ms = now_ms - max(retention.versions_ms, VERSIONS_MS_MIN)
        past = (index for index, info in enumerate(infos) if info.modified_ms <= since_ms)
        current = max(past, default=0)
    first = _last_whole(infos[: current + 1])
    commits = list((await _read_commits(store, infos[first:], {})).values())
    needed: set[str] = set()
    for index, commit in enumerate(commits, first):
        if index <= current:
            needed.difference_update(needed if commit.whole else commit.remove)
        needed.update(file.path for file in commit.add)
    orphans = [info for info in files if info.key.removeprefix(prefix) not in needed]
    if not dry_run:
        await store.delete([info.key for info in infos[:first]])
        await store.delete([info.key for info in orphans])
    return Maintained(first, len(orphans), sum(info.size_bytes for info in orphans))


_commits: dict[tuple[str, str], _Commits] = {}
"""Cache of commits, which never change once written; at most `WHOLE_EVERY` per table."""


async def _table_names(store: ObjectStore) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        infos = [info.key async for info in store.list("", start_after=after, limit=1)]
        if not infos:
            return found
        name = infos[0].partition("/")[0]
        first = [info async for info in store.list(f"{name}/{LOG}", limit=1)]
        if first:
            found.append(name)
        after = f"{name}0"  # "0" is the character after the slash
