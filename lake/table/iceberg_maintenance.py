"""Expire snapshots of an Iceberg table, and delete files that no snapshot refers to.

Snapshots are removed from the metadata in one conditional commit; their files are then found by
listing, like the files of killed writers. Files are compared by name: names are unique, while
engines write the same path in several forms. Source: Iceberg's `expire_snapshots`,
`remove_orphan_files`.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as NativeTable
from pyiceberg.table import update as _update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableRequirement, TableUpdate

from penstock.base.log import get_logger
from penstock.lake.table.errors import CommitConflict, InvalidTable, WarehouseFailed
from penstock.lake.table.iceberg_position import ancestors, position, records_offsets
from penstock.lake.table.model import Maintained, Retention
from penstock.lake.table.pyarrow_untyped import fs

AGE_MAX: Final = "history.expire.max-snapshot-age-ms"
KEPT_MIN: Final = "history.expire.min-snapshots-to-keep"
GC_ENABLED: Final = "gc.enabled"
"""Properties of Iceberg tables. If a table's retention and the requested retention differ, the
longer one applies.
"""

_DIRECTORIES: Final = ("data", "metadata")
"""Directories of the table. Files elsewhere, as with `write.data.path`, may belong to other
tables.
"""

_SUFFIXES: Final = (".parquet", ".orc", ".avro", ".puffin", ".stats", ".metadata.json")
_TRIES: Final = 5
_THREADS: Final = 8

_updates: Any = _update
"""pyiceberg's module of models; type checkers see other field names."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_log = get_logger(__name__)


def maintain_table(
    catalog: Catalog, name: str, retention: Retention, now_ms: int, *, dry_run: bool
) -> Maintained:
    """Expire snapshots and delete unused files. Raise CommitConflict, InvalidTable, WarehouseFailed
    or the errors of the catalog.
    """
    expired = _expire(catalog, name, retention, now_ms, dry_run=dry_run)
    if retention.orphans_ms is None:
        return Maintained(len(expired), 0, 0)
    table = catalog.load_table(name)
    if table.metadata.properties.get(GC_ENABLED, "true").lower() == "false":
        _log.info("table_files_kept", table=name, reason=f"{GC_ENABLED} is false")
        return Maintained(len(expired), 0, 0)
    try:
        system, files = _files_before(table, now_ms - retention.orphans_ms)
        # The table is loaded after the listing, because a listed file may have been committed in
        # the meantime.
        names = _referenced(catalog.load_table(name), without=expired if dry_run else set())
        orphans = [file for file in files if file.base_name not in names]
        if not dry_run:
            _parallel(lambda file: _delete(system, file.path), orphans)
    except OSError as error:
        raise WarehouseFailed(
            f"files of table {name} cannot be listed, read or deleted: {error}; the next"
            " maintenance continues"
        ) from error
    return Maintained(len(expired), len(orphans), sum(file.size for file in orphans))


def _expire(
    catalog: Catalog, name: str, retention: Retention, now_ms: int, *, dry_run: bool
) -> set[int]:
    """Expire snapshots, and return their ids. Raise CommitConflict."""
    reason = ""
    for _ in range(_TRIES):
        table = catalog.load_table(name)
        expired = expired_snapshots(table.metadata, retention.versions_ms, now_ms)
        if not expired or dry_run:
            return expired
        updates: tuple[TableUpdate, ...] = (
            *(
                _updates.RemovePartitionStatisticsUpdate(snapshot_id=found.snapshot_id)
                for found in table.metadata.partition_statistics
                if found.snapshot_id in expired
            ),
            _updates.RemoveSnapshotsUpdate(snapshot_ids=sorted(expired)),
        )
        requirements: tuple[TableRequirement, ...] = (
            _updates.AssertTableUUID(uuid=table.metadata.table_uuid),
            *(
                _updates.AssertRefSnapshotId(ref=ref, snapshot_id=found.snapshot_id)
                for ref, found in table.metadata.refs.items()
            ),
        )
        try:
            catalog.commit_table(table, requirements, updates)
        except (CommitFailedException, ValueError) as error:
            # pyiceberg raises ValueError if another process has expired the same snapshots.
            reason = str(error)
            continue
        return expired
    raise CommitConflict(f"other processes keep changing table {name}: {reason[:300]}")


def expired_snapshots(metadata: TableMetadata, retention_ms: int | None, now_ms: int) -> set[int]:
    """Return the ids of snapshots that are not needed to read any branch as of a time within the
    retention, nor to find the position of the export. Heads of branches and tags are needed.
    """
    if retention_ms is None or not metadata.snapshots:
        return set()
    properties = metadata.properties
    default_ms = max(retention_ms, int(properties.get(AGE_MAX, 0)))
    kept_min = int(properties.get(KEPT_MIN, 1))
    kept: set[int] = set()
    for ref in metadata.refs.values():
        kept.add(ref.snapshot_id)
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            since_ms = now_ms - max(default_ms, ref.max_snapshot_age_ms or 0)
            count = max(kept_min, ref.min_snapshots_to_keep or 0)
            history = ancestors(metadata, ref.snapshot_id)
            kept |= {found.snapshot_id for found in _current_since(history, since_ms, count)}
    since_ms = now_ms - default_ms
    # A snapshot that was rolled back has no descendants in any branch.
    ends_ms = [entry.timestamp_ms for entry in metadata.snapshot_log[1:]] + [now_ms]
    kept |= {
        entry.snapshot_id
        for entry, end_ms in zip(metadata.snapshot_log, ends_ms, strict=True)
        if end_ms > since_ms
    }
    for snapshot in ancestors(metadata, metadata.current_snapshot_id):
        kept.add(snapshot.snapshot_id)
        if records_offsets(snapshot):
            break
    expired = {
        found.snapshot_id
        for found in metadata.snapshots
        if found.snapshot_id not in kept and found.timestamp_ms <= since_ms
    }
    remaining = [found for found in metadata.snapshots if found.snapshot_id not in expired]
    after = position(metadata.model_copy(update={"snapshots": remaining}))
    if not after.is_where(position(metadata)):
        _log.warning(
            "table_snapshots_kept",
            reason="the table was rolled back, and not exported since",
            snapshots=len(expired),
        )
        return set()
    return expired


def _current_since(history: list[Snapshot], since_ms: int, count: int) -> Iterable[Snapshot]:
    """Yield the newest snapshots of a branch: all that were its head after `since_ms`, and at least
    `count`.
    """
    yield from history[:count]
    for child, snapshot in pairwise(history):
        if child.timestamp_ms <= since_ms:
            return
        yield snapshot


def _files_before(table: NativeTable, before_ms: int) -> tuple[Any, list[Any]]:
    """Return pyarrow's file system, and the files that were last modified before `before_ms`."""
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        raise InvalidTable(
            f"files of table {'.'.join(table.name())} can only be listed with pyarrow: remove the"
            " catalog property py-io-impl"
        )
    scheme, host, location = PyArrowFileIO.parse_location(
        table.metadata.location.rstrip("/"), io.properties
    )
    system: Any = cast("Any", io).fs_by_scheme(scheme, host)
    found: list[Any] = []
    for directory in _DIRECTORIES:
        wanted = fs.FileSelector(f"{location}/{directory}", recursive=True, allow_not_found=True)
        found += (
            info
            for info in system.get_file_info(wanted)
            if info.type == fs.FileType.File
            and info.base_name.endswith(_SUFFIXES)
            and not info.base_name.startswith((".", "_"))
            and info.mtime_ns is not None
            and info.mtime_ns // 1_000_000 < before_ms
        )
    return system, found


def _referenced(table: NativeTable, without: set[int]) -> set[str]:
    """Return the names of all files of all snapshots except those in `without`."""
    metadata = table.metadata
    paths = [entry.metadata_file for entry in metadata.metadata_log]
    if table.metadata_location:
        paths.append(table.metadata_location)
    snapshots = [found for found in metadata.snapshots if found.snapshot_id not in without]
    paths += [found.manifest_list for found in snapshots]
    statistics = (*metadata.statistics, *metadata.partition_statistics)
    paths += [found.statistics_path for found in statistics if found.snapshot_id not in without]
    lists = _parallel(lambda snapshot: snapshot.manifests(table.io), snapshots)
    manifests = {found.manifest_path: found for manifest_list in lists for found in manifest_list}
    paths += manifests

    def data_files(manifest: ManifestFile) -> list[str]:
        return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)]

    names = {path.rpartition("/")[2] for path in paths}
    for found in _parallel(data_files, list(manifests.values())):
        names.update(path.rpartition("/")[2] for path in found)
    return names


def _delete(system: Any, path: str) -> None:  # noqa: ANN401 - pyarrow is untyped
    with suppress(FileNotFoundError):
        system.delete_file(path)


def _parallel(work: Callable[[_In], _Out], items: list[_In]) -> list[_Out]:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-maintenance") as pool:
        return list(pool.map(work, items))
