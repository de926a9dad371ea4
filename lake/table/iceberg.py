"""An Iceberg table, accessed through pyiceberg and any of its catalogs.

A commit succeeds only on top of the snapshot that was read before; pyiceberg's retries, which would
add the same files twice, are disabled. Offsets and batch id are in the snapshot summary and the
table properties, so they survive rewrites and the expiry of snapshots.
"""

import json
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest.auth import AUTH_MANAGER
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    ValidationError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io import pyarrow as _pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask, TableProperties
from pyiceberg.table import Table as NativeTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType

from penstock.base.log import get_logger
from penstock.base.partition_spec import IDENTITY, PartitionField, partition_text
from penstock.lake.arrow.pyarrow_untyped import Buffer, DataType, Schema, Table, pa
from penstock.lake.table.catalog import address_of, catalog_errors
from penstock.lake.table.errors import (
    CatalogRefused,
    CatalogUnavailable,
    CommitConflict,
    CommitUnknown,
    InvalidTable,
    WarehouseFailed,
)
from penstock.lake.table.files import FilePlace, fitted
from penstock.lake.table.iceberg_maintenance import maintain_table
from penstock.lake.table.iceberg_position import (
    BATCH_ID,
    COMMIT_ID,
    OFFSETS,
    TOPIC,
    TOPIC_ID,
    position,
)
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
from penstock.lake.table.partition_values import check_partition_fields
from penstock.lake.table.pyarrow_untyped import Footer, pq
from penstock.lake.table.rows import OFFSET, TIMESTAMP, refuse_names
from penstock.lake.table.tables import APPEND, UPSERT, check_layout_version, check_mode, mode_of
from penstock.lake.table.values import refuse_same_names

LAYOUT: Final = "penstock.layout-version"
MODE: Final = "penstock.write-mode"
"""The property with the mode, `upsert` or `append`. Tables without this property are upserted if
they are partitioned by the Kafka partition.
"""

_METADATA_FILES: Final = {
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}
"""Properties that make catalogs delete old metadata files, because each commit writes one."""

_DAY: Final = f"{TIMESTAMP}_day"
"""Name of the partition field for the day, as Iceberg would choose it; it cannot conflict with
fields of values.
"""

RESERVED: Final = (
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
    "_change_type",
    "_change_ordinal",
    "_commit_snapshot_id",
    _DAY,
)
"""Column names that prevent Iceberg's engines from reading a table or its changes (Java
`MetadataColumns`), and the export's own partition field.
"""

_arrow_io: Any = _pyarrow
"""pyiceberg's pyarrow module, without types."""

_log = get_logger(__name__)

_FIELD_ID: Final = b"PARQUET:field_id"
_TRIES: Final = 5
_LOGIN: Final = frozenset({AUTH_MANAGER, "auth", "credential", "token"})
"""Credentials for a REST catalog. They are not sent to tasks, which may run elsewhere and only
access files.
"""


@dataclass(frozen=True)
class IcebergPlace:
    """The location of the table's files. `metadata` contains schema, partition spec and properties,
    but no history, because it is sent with every task.
    """

    properties: Mapping[str, str]
    metadata: TableMetadata

    @property
    def schema(self) -> Schema:
        return _arrow_io.schema_to_pyarrow(self.metadata.schema())

    def put(
        self, name: str, data: Buffer, footer: Footer, group: Group, first: tuple[int, int]
    ) -> FileEntry:
        metadata = self.metadata
        path = f"{metadata.location.rstrip('/')}/data/{name}"
        with _store_errors(path), self._io().new_output(path).create(overwrite=False) as stream:
            stream.write(memoryview(data))  # type: ignore[arg-type]  # any buffer will do
        schema = metadata.schema()
        statistics = _arrow_io.data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=_arrow_io.compute_statistics_plan(schema, metadata.properties),
            parquet_column_mapping=_arrow_io.parquet_path_to_id_mapping(schema),
        )
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*group),
            file_size_in_bytes=len(data),
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        return FileEntry(path, footer.num_rows, len(data), group, first, FileScanTask(file))

    def read(self, file: FileEntry, columns: list[str] | None = None) -> Table:
        """Return the columns by their field ids, including those in structs. pyiceberg reads files
        with delete files, and files without field ids; it returns empty lists for null lists.
        """
        schema = self.metadata.schema()
        wanted = schema if columns is None else schema.select(*columns)
        found: Any = None
        if not file.native.delete_files:
            with _store_errors(file.path), self._io().new_input(file.path).open() as stream:
                found = pq.ParquetFile(pa.BufferReader(stream.read()))
        if found is None or not _has_field_ids(found.schema_arrow):
            scan = _arrow_io.ArrowScan(self.metadata, self._io(), wanted, AlwaysTrue())
            with _store_errors(file.path):
                return scan.to_table([file.native])
        held_fields: list[Any] = list(found.schema_arrow)
        names = {_field_id(field.metadata): field.name for field in held_fields}
        held = {
            field.name: names[field.field_id] for field in wanted.fields if field.field_id in names
        }
        rows = found.read(columns=list(held.values())).select(list(held.values()))
        target = _arrow_io.schema_to_pyarrow(wanted)
        # Arrow converts structs by name, so ids temporarily serve as names.
        by_id = _named_by_id(rows.schema)
        rows = _viewed(rows, by_id).rename_columns(list(held))
        return _viewed(fitted(rows, _named_by_id(target)), target)

    def delete(self, files: list[FileEntry]) -> None:
        io = self._io()
        for file in files:
            try:
                with _store_errors(file.path):
                    io.delete(file.path)
            except FileNotFoundError:
                continue

    def _io(self) -> FileIO:
        return load_file_io(dict(self.properties), self.metadata.location)


class IcebergTable:
    """A table, identified by NAMESPACE.NAME. `layout` is the layout of a new table, and must match
    that of an existing table; None accepts any.
    """

    def __init__(self, catalog: Catalog, identifier: str, layout: Layout | None) -> None:
        self.name = identifier
        self._catalog = catalog
        weakref.finalize(self, catalog.close)
        self._layout = layout
        self._replaced: Layout | None = None
        """The layout of the table, if it differs from the requested one."""

        self._is_known = False
        self._table: NativeTable | None = None

    def state(self) -> TableState:
        try:
            return position(self._reload())
        except NoSuchTableError:
            self._table = None
            return TableState("")

    def upgrade(self) -> None:
        for _ in range(_TRIES):
            table = self._table
            if table is None or OLDER_PARTITION not in table.schema().column_names:
                return
            if PARTITION in table.schema().column_names:
                raise InvalidTable(
                    f"table {self.name} has the columns {OLDER_PARTITION} and {PARTITION}: another"
                    " program added one of them; export into another table"
                )
            # Readers identify columns by field id; this mapping is for files without ids.
            mapping = table.metadata.name_mapping() or table.schema().name_mapping
            properties = {
                TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json(),
                LAYOUT: str(LAYOUT_VERSION),
            }
            try:
                with (
                    catalog_errors(address_of(self._catalog)),
                    table.transaction() as transaction,
                ):
                    transaction.set_properties(properties)
                    with transaction.update_schema() as update:
                        update.rename_column(OLDER_PARTITION, PARTITION)
            except (CommitFailedException, CatalogUnavailable):
                pass  # the reloaded table shows whether the commit happened
            else:
                _log.info("table_upgraded", table=self.name, layout_version=LAYOUT_VERSION)
            self._reload()
        raise CommitConflict(f"other processes keep changing the schema of table {self.name}")

    def prepare(self, schema: Schema) -> None:
        names = [field.name for field in self.layout.fields if field.transform != IDENTITY]
        refuse_names(schema.names, (*RESERVED, *names), "Iceberg")
        for _ in range(_TRIES):
            if self._table is None:
                self._create(schema)
            table = self._loaded()
            known = _arrow_io.schema_to_pyarrow(table.schema())
            refuse_same_names([*known, *schema])
            try:
                _check_types(pa.struct(list(known)), pa.struct(list(schema)), "")
                with catalog_errors(address_of(self._catalog)), table.update_schema() as update:
                    cast("Any", update).union_by_name(schema)  # does not commit if no column is new
            except (CommitFailedException, CatalogUnavailable):
                self._table = self._load()  # shows whether the commit happened
                continue
            except (ValueError, ValidationError) as error:
                raise InvalidTable(
                    f"table {self.name} has a column of another type: {error}; export into another"
                    " table"
                ) from None
            if self._repartition():
                return
        raise CommitConflict(f"other processes keep changing the schema of table {self.name}")

    def _repartition(self) -> bool:
        """Add a partition spec if another one was requested. Existing files keep their spec. Return
        whether there was nothing to do.
        """
        if self._replaced is None:
            return True
        table, layout = self._loaded(), self.layout
        check_partition_fields(layout.fields, _arrow_io.schema_to_pyarrow(table.schema()))
        found = _fields_of(table.spec(), table.metadata)
        try:
            with catalog_errors(address_of(self._catalog)), table.update_spec() as update:
                for native, field in zip(table.spec().fields, found, strict=True):
                    if field not in layout.fields:
                        update.remove_field(native.name)
                for field in layout.fields:
                    if field not in found:
                        update.add_field(*_native(field))
        except (CommitFailedException, CatalogUnavailable):
            pass  # the reloaded table shows whether the commit happened
        except ValueError as error:
            raise InvalidTable(f"table {self.name} cannot be repartitioned: {error}") from None
        else:
            _log.info(
                "table_repartitioned",
                table=self.name,
                partition_by=partition_text(layout.fields),
                earlier=partition_text(found),
            )
        self._reload()
        return False

    def files(self) -> list[FileEntry]:
        if self._table is None or self._table.current_snapshot() is None:
            return []
        table, metadata = self._table, self._table.metadata
        layout, specs = self.layout, metadata.specs()
        column = layout.partition_column
        ids = {field.name: field.field_id for field in metadata.schema().fields}
        found: list[FileEntry] = []
        for task in table.scan().plan_files():
            file = task.file
            spec = specs[file.spec_id]
            group = tuple(file.partition[index] for index in range(len(spec.fields)))
            partition = replace(layout, fields=_fields_of(spec, metadata)).partition_of(group)
            first = (_lower(file, ids.get(column), table), _lower(file, ids.get(OFFSET), table))
            found.append(
                FileEntry(
                    file.file_path,
                    file.record_count,
                    file.file_size_in_bytes,
                    group,
                    first,
                    task,
                    partition,
                    file.spec_id == metadata.default_spec_id,
                    frozenset(delete.file_path for delete in task.delete_files),
                )
            )
        return found

    def place(self) -> FilePlace:
        table = self._loaded()
        bare = table.metadata.model_copy(
            update={
                "snapshots": [],
                "snapshot_log": [],
                "metadata_log": [],
                "refs": {},
                "current_snapshot_id": None,
            }
        )
        properties = {
            name: value for name, value in table.io.properties.items() if name not in _LOGIN
        }
        return IcebergPlace(properties, bare)

    def commit(self, commit: Commit) -> None:
        table = self._loaded()
        assert str(table.metadata.current_snapshot_id) == commit.base.version, "state() first"
        recorded = {
            OFFSETS: json.dumps(
                {
                    commit.topic: {
                        str(partition): offset
                        for partition, offset in sorted(commit.offsets.items())
                    }
                }
            ),
            BATCH_ID: str(commit.batch_id),
            COMMIT_ID: commit.commit_id,
            TOPIC: commit.topic,
            TOPIC_ID: commit.topic_id,
        }
        once = table.metadata.properties | {TableProperties.COMMIT_NUM_RETRIES: "0"}
        # This is changed only in this process; other writers keep their retries.
        table.metadata = table.metadata.model_copy(update={"properties": once})

        try:
            with catalog_errors(address_of(self._catalog)), table.transaction() as transaction:
                transaction.set_properties(
                    {name: value for name, value in recorded.items() if name != COMMIT_ID}
                )
                update = transaction.update_snapshot(snapshot_properties=recorded)
                with update.overwrite() if commit.removed else update.merge_append() as snapshot:
                    for file in commit.removed:
                        snapshot.delete_data_file(file.native.file)
                    for file in commit.added:
                        snapshot.append_data_file(file.native.file)
        except (CommitFailedException, ValidationException) as error:
            raise CommitConflict(str(error)) from error
        except CatalogRefused:
            raise  # a retry would not help
        except Exception as error:  # a remote catalog may fail in any way after it has committed
            raise CommitUnknown(f"{type(error).__name__}: {error}") from error

    def maintain(self, retention: Retention, now_ms: int, *, dry_run: bool = False) -> Maintained:
        self.state()
        self._loaded()
        with catalog_errors(address_of(self._catalog)):
            return maintain_table(self._catalog, self.name, retention, now_ms, dry_run=dry_run)

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            self._loaded()
        return self._layout or Layout()

    def _load(self) -> NativeTable:
        with catalog_errors(address_of(self._catalog)):
            return self._catalog.load_table(self.name)

    def _reload(self) -> TableMetadata:
        self._table = self._load()
        self._check_layout(self._table.metadata)
        return self._table.metadata

    def _loaded(self) -> NativeTable:
        if self._table is None:
            raise InvalidTable(f"table {self.name} does not exist")
        return self._table

    def _create(self, schema: Schema) -> None:
        """Create the table. If two runs create it concurrently, the catalog returns an error to one
        of them, but the table exists after that.
        """
        for attempt in range(_TRIES):
            try:
                with catalog_errors(address_of(self._catalog)):
                    self._create_once(schema)
            except Exception as error:
                if attempt == _TRIES - 1:
                    raise InvalidTable(f"table {self.name} cannot be created: {error}") from error
            with suppress(NoSuchTableError):
                self._reload()
                return

    def _create_once(self, schema: Schema) -> None:
        layout = self._layout or Layout()
        namespace = Catalog.namespace_from(self.name)
        if not self._catalog.namespace_exists(namespace):  # creating it may not be allowed
            self._catalog.create_namespace_if_not_exists(namespace)
        check_partition_fields(layout.fields, schema)
        properties = {LAYOUT: str(LAYOUT_VERSION), MODE: mode_of(layout)} | _METADATA_FILES
        made = cast("Any", self._catalog).create_table_transaction(
            self.name, schema, properties=properties
        )
        with made, made.update_spec() as spec:
            for field in layout.fields:
                spec.add_field(*_native(field))

    def _check_layout(self, metadata: TableMetadata) -> None:
        check_layout_version(self.name, int(metadata.properties.get(LAYOUT, "1")))
        found = _layout_of(metadata)
        wanted, replaced = self._layout, self._replaced
        self._replaced = None
        if (
            wanted is not None
            and found.upsert
            and PartitionField(IDENTITY, found.partition_column) not in found.fields
        ):
            raise InvalidTable(
                f"table {self.name} is no longer partitioned by {found.partition_column}, by which"
                " upserts find older rows: add this partition field again (ALTER TABLE ... ADD"
                " PARTITION FIELD), and rewrite files without it (rewrite_data_files)"
            )
        if wanted is None or (wanted.keeps_existing and wanted.upsert == found.upsert):
            self._layout = found
            return
        check_mode(self.name, wanted, found)
        wanted = wanted.with_partition_column(found.partition_column)
        if found.has_fields_of(wanted):
            self._layout = found
        elif not self._is_known or (replaced is not None and found.has_fields_of(replaced)):
            self._layout, self._replaced = wanted, found
        else:
            raise InvalidTable(
                f"table {self.name} was partitioned by {partition_text(found.fields)} during the"
                f" export by {partition_text(wanted.fields)}: use the same --partition-by in all"
                " runs, or none to keep that of the table"
            )
        self._is_known = True


def _check_types(known: DataType, given: DataType, path: str) -> None:
    """Raise ValueError for changes that pyiceberg accepts although files or values do not allow
    them: another scale of decimals, which Iceberg forbids, and bytes in a column of text.
    """
    types: Any = pa.types
    if types.is_struct(known) and types.is_struct(given):
        for field in given:
            at = known.get_field_index(field.name)
            if at >= 0:
                _check_types(known.field(at).type, field.type, f"{path}.{field.name}")
    elif types.is_map(known) and types.is_map(given):
        _check_types(known.item_type, given.item_type, f"{path}.value")
    elif (types.is_list(known) or types.is_large_list(known)) and types.is_list(given):
        _check_types(known.value_type, given.value_type, f"{path}.element")
    elif (types.is_decimal(known) and types.is_decimal(given) and known.scale != given.scale) or (
        types.is_binary(given) and (types.is_string(known) or types.is_large_string(known))
    ):
        raise ValueError(
            f"Cannot change column type: {path[1:]}: {str(known).removeprefix('large_')} -> {given}"
        )


@contextmanager
def _store_errors(path: str) -> Generator[None, None, None]:
    """Convert errors of the tables' store to WarehouseFailed, which contains a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WarehouseFailed(
            f"the store of the tables failed at {path}: {error}; check the address and the keys in"
            " --warehouse, or the keys issued by the catalog"
        ) from error


def _field_id(metadata: Any) -> int:  # noqa: ANN401 - pyarrow is untyped
    """Return the field id, or -1 if the file has none."""
    return int(metadata.get(_FIELD_ID, -1)) if metadata else -1


def _has_field_ids(fields: Any) -> bool:  # noqa: ANN401 - a schema or a type
    """Return whether all fields have ids, including those in structs."""
    if isinstance(fields, pa.Schema) or pa.types.is_struct(fields):
        return all(
            _field_id(field.metadata) >= 0 and _has_field_ids(field.type) for field in fields
        )
    if pa.types.is_map(fields):
        return _has_field_ids(fields.key_type) and _has_field_ids(fields.item_type)
    return not pa.types.is_nested(fields) or _has_field_ids(fields.value_type)


def _named_by_id(schema: Schema) -> Schema:
    """Return the schema with ids as the names of fields in structs."""
    return pa.schema([field.with_type(_type_by_id(field.type)) for field in schema])


def _type_by_id(kind: Any) -> Any:  # noqa: ANN401 - pyarrow is untyped
    types: Any = pa.types
    if types.is_struct(kind):
        return pa.struct(
            [
                pa.field(str(_field_id(field.metadata)), _type_by_id(field.type), field.nullable)
                for field in kind
            ]
        )
    if types.is_map(kind):
        return pa.map_(_type_by_id(kind.key_type), _type_by_id(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_type_by_id(kind.value_type)))
    return kind


def _viewed(rows: Table, schema: Schema) -> Table:
    """Return the rows with different names for the fields in structs."""
    columns = [
        pa.chunked_array([chunk.view(field.type) for chunk in column.chunks], field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _layout_of(metadata: TableMetadata) -> Layout:
    schema = metadata.schema()
    column = OLDER_PARTITION if OLDER_PARTITION in schema.column_names else PARTITION
    fields = _fields_of(metadata.spec(), metadata)
    is_by_partition = PartitionField(IDENTITY, column) in fields
    mode = metadata.properties.get(MODE, UPSERT if is_by_partition else APPEND)
    return Layout(fields, mode == UPSERT, column)


def _fields_of(spec: PartitionSpec, metadata: TableMetadata) -> tuple[PartitionField, ...]:
    """Return the fields with their current names, in the order of the spec."""
    found: list[PartitionField] = []
    for field in spec.fields:
        column = metadata.schema().find_column_name(field.source_id) or ""
        name, _, width = str(cast("Any", field).transform).rstrip("]").partition("[")
        found.append(PartitionField(name, column, int(width or 0)))
    return tuple(found)


def _native(field: PartitionField) -> tuple[str, Transform[Any, Any], str]:
    """Return the arguments with which pyiceberg adds the field."""
    width = f"[{field.width}]" if field.width else ""
    return field.column, parse_transform(f"{field.transform}{width}"), field.name


def _lower(file: DataFile, field_id: int | None, table: NativeTable) -> int:
    bounds = file.lower_bounds
    if field_id is None or not bounds or field_id not in bounds:
        return 0
    kind = table.schema().find_type(field_id)
    return (
        int(from_bytes(kind, bounds[field_id])) if isinstance(kind, IntegerType | LongType) else 0
    )
