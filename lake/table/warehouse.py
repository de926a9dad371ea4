"""Find tables: in a warehouse directory or bucket, and for Iceberg in a catalog.

Invariant: both kinds of table have the same addresses: `file:DIR`, a directory, or a bucket URL as
for the log (Iceberg: only S3). A file warehouse without a catalog uses an embedded SQLite catalog;
other warehouses require a catalog. Source: pyiceberg's configuration.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.lake.arrow.pyarrow_untyped import Table, pa
from penstock.lake.table.directory import DirectoryTable, table_names
from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.files import fitted
from penstock.lake.table.model import FileEntry, Layout
from penstock.lake.table.tables import ExportTable
from penstock.objectstore.config import DirectoryConfig, RemoteConfig, S3Config
from penstock.objectstore.errors import InvalidStoreUrl
from penstock.objectstore.url import parse_store_url

KINDS: Final = ("iceberg", "parquet")
CATALOGS: Final = ("sql", "glue", "rest")
REJECTS_SUFFIX: Final = "__dlq"
_READS_AT_ONCE: Final = 8
_SQLITE: Final = "catalog.db"
_DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """A warehouse of `kind` iceberg or parquet. `catalog_properties` override properties derived
    from other options. Raise InvalidTable.
    """

    kind: str
    location: str
    catalog_name: str = "penstock"
    """SQL catalogs use this name to distinguish the tables of several catalogs."""

    catalog_type: str = ""
    catalog_uri: str = ""
    catalog_properties: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidTable(f"--to {self.kind!r}: choose one of {', '.join(KINDS)}")
        if self.catalog_type and self.catalog_type not in CATALOGS:
            raise InvalidTable(
                f"--catalog-type {self.catalog_type!r}: choose one of {', '.join(CATALOGS)}"
            )

    def table(self, name: str, layout: Layout | None) -> ExportTable:
        """Return one table, which may not exist yet. `layout`: None accepts the layout of an
        existing table.
        """
        if self.kind == "parquet":
            if not name or name.startswith(".") or "/" in name:
                raise InvalidTable(
                    f"table name {name!r}: it becomes a directory, so it must have no slash and not"
                    " begin with a dot"
                )
            return DirectoryTable(self._url(), name, layout)
        from penstock.lake.table.catalog import open_catalog
        from penstock.lake.table.iceberg import IcebergTable

        return IcebergTable(
            open_catalog(self.catalog_name, self.properties()), qualified(name), layout
        )

    def existing(self, name: str) -> ExportTable:
        """Return one table, with its own layout."""
        return self.table(name, None)

    def tables(self) -> list[str]:
        """Return the names of all tables, including dead letters."""
        if self.kind == "parquet":
            return table_names(self._url())
        from penstock.lake.table.catalog import names_in, open_catalog

        with open_catalog(self.catalog_name, self.properties()) as catalog:
            return names_in(catalog)

    def read(self, name: str, bytes_max: int) -> Table:
        """Return all rows of a table with any layout."""
        return read_rows(self.existing(name), bytes_max)

    def properties(self) -> dict[str, str]:
        """Return the properties for `load_catalog`."""
        found: dict[str, str] = {}
        store = self._store()
        if isinstance(store, DirectoryConfig):
            directory = Path(store.directory).resolve()
            found["warehouse"] = directory.as_uri()
            if not self.catalog_type and not self.catalog_uri:
                try:
                    directory.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise InvalidTable(
                        f"--warehouse {directory}: the directory cannot be created:"
                        f" {error.strerror}"
                    ) from None
                found |= {"type": "sql", "uri": f"sqlite:///{directory / _SQLITE}"}
        else:
            found |= {
                "warehouse": f"s3://{store.bucket}/{store.prefix}".rstrip("/"),
                **_s3_properties(store),
            }
            if (
                not self.catalog_type
                and not self.catalog_uri
                and "uri" not in self.catalog_properties
            ):
                raise InvalidTable(
                    "a warehouse in S3 needs a catalog: --catalog-type glue, or --catalog-uri of a"
                    " REST or SQL catalog"
                )
        if self.catalog_type:
            found["type"] = self.catalog_type
        if self.catalog_uri:
            found["uri"] = self.catalog_uri
        return found | dict(self.catalog_properties)

    def _url(self) -> str:
        return (
            f"file:{Path(self.location).absolute()}" if ":" not in self.location else self.location
        )

    def _store(self) -> DirectoryConfig | S3Config:
        try:
            store = parse_store_url(self._url())
        except InvalidStoreUrl as error:
            raise InvalidTable(f"--warehouse: {error}") from None
        if isinstance(store, DirectoryConfig | S3Config):
            return store
        if isinstance(store, RemoteConfig):
            raise InvalidTable(
                f"--warehouse {store.redacted()}: Iceberg tables in Google Cloud Storage and Azure"
                " are not supported; use a directory or s3://, or `--to parquet`"
            )
        raise InvalidTable("--warehouse memory: its contents would be lost when this command exits")


def read_rows(table: ExportTable, bytes_max: int) -> Table:
    """Return all rows of a table. Raise InvalidTable if its files are larger than `bytes_max`."""
    table.state()
    place, files = table.place(), table.files()
    total_bytes = sum(file.size_bytes for file in files)
    if total_bytes > bytes_max:
        raise InvalidTable(
            f"table {table.name} has {total_bytes} bytes, more than {bytes_max}, the limit of a"
            " query: read its files with an engine"
        )
    schema = place.schema

    def rows_of(file: FileEntry) -> Table:
        return fitted(place.read(file), schema)

    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="table-read") as pool:
        tables = list(pool.map(rows_of, files))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def qualified(name: str) -> str:
    """Return the name with a namespace."""
    return name if "." in name else f"{_DEFAULT_NAMESPACE}.{name}"


def table_name_of(topic: str) -> str:
    """Return a table name for a topic, without dots (which separate namespaces) or dashes (which
    require quotes in SQL).
    """
    return topic.replace(".", "_").replace("-", "_")


def _s3_properties(store: S3Config) -> dict[str, str]:
    """Return the S3 properties for the catalog. The prefix `client.` applies to both S3 and
    Glue.
    """
    properties = {
        "s3.endpoint": store.endpoint,
        "client.region": store.region or ("us-east-1" if store.endpoint else None),
        "client.access-key-id": store.access_key,
        "client.secret-access-key": store.secret_key,
        "client.session-token": store.session_token,
        "s3.force-virtual-addressing": None if store.path_style else "true",
    }
    found = {name: value for name, value in properties.items() if value}
    if store.endpoint and "client.access-key-id" not in found and "127.0.0.1" in store.endpoint:
        found |= {"client.access-key-id": "local", "client.secret-access-key": "local"}
    return found
