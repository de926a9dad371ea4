"""Define the options that several commands of `penstock table` share."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.deploy.errors import UsageError

if TYPE_CHECKING:
    from penstock.lake.table.engines import Engine
    from penstock.lake.table.job import SyncOptions
    from penstock.lake.table.warehouse import Warehouse

MIB_MAX: Final = 1 << 20

Store = Annotated[
    str,
    typer.Option(envvar="PENSTOCK_STORE", help="Store of the brokers, as in their --store."),
]


MaskKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_MASK_KEY_FILE",
        metavar="FILE",
        help="File with the key of hashes; by default the key is in PENSTOCK_MASK_KEY.",
        show_default=False,
    ),
]


Headers = Annotated[
    bool, typer.Option("--headers", help="Add a column with the headers of records.")
]


def read_mask_key(path: Path | None) -> bytes:
    """Raise UsageError if the file cannot be read."""
    if path is None:
        return os.environ.get("PENSTOCK_MASK_KEY", "").encode()
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--mask-key-file {path} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, kw_only=True)
class CatalogOptions:
    """Options for the location of Iceberg and Parquet tables."""

    warehouse: Annotated[
        str,
        typer.Option(
            "--warehouse",
            envvar="PENSTOCK_WAREHOUSE",
            help=(
                "Location of the tables: a directory, or s3://BUCKET/PREFIX?endpoint=...;"
                " parquet also gs://BUCKET/PREFIX and az://ACCOUNT/CONTAINER/PREFIX."
            ),
        ),
    ] = "./warehouse"
    catalog_name: Annotated[
        str, typer.Option(help="Catalog name; needed if several catalogs share a database.")
    ] = "penstock"
    catalog_type: Annotated[
        str,
        typer.Option(
            help="sql, glue or rest. The default is SQLite in the directory of the warehouse."
        ),
    ] = ""
    catalog_uri: Annotated[
        str, typer.Option(envvar="PENSTOCK_CATALOG_URI", help="URI of a REST or SQL catalog.")
    ] = ""
    catalog_property: Annotated[
        list[str] | None,
        typer.Option(help="Property of pyiceberg's catalog, as NAME=VALUE. Repeatable."),
    ] = None

    def warehouse_of(self, kind: str) -> "Warehouse":
        """Raise UsageError for a property that is not NAME=VALUE."""
        from penstock.lake.table.warehouse import Warehouse

        given: dict[str, str] = {}
        for item in self.catalog_property or []:
            name, separator, value = item.partition("=")
            if not separator:
                raise UsageError(f"--catalog-property {item!r} is invalid: use NAME=VALUE")
            given[name] = value
        return Warehouse(
            kind=kind,
            location=self.warehouse,
            catalog_name=self.catalog_name,
            catalog_type=self.catalog_type,
            catalog_uri=self.catalog_uri,
            catalog_properties=given,
        )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options for the engine that runs tasks."""

    engine: Annotated[
        Literal["local", "spark"],
        typer.Option("--engine", help="local (threads of this process) or spark (a Spark job)."),
    ] = "local"
    master: Annotated[
        str, typer.Option(help="Spark master, as in spark-submit; implies --engine spark.")
    ] = ""

    @property
    def is_spark(self) -> bool:
        return self.engine == "spark" or bool(self.master)

    def start(self) -> "closing[Engine]":
        from penstock.lake.table.engines import LocalEngine, SparkEngine

        try:
            return closing(SparkEngine(self.master) if self.is_spark else LocalEngine())
        except ModuleNotFoundError as error:
            raise ExpectedError(
                f"the package {error.name} is missing: {install_hint('table', 'spark')}, or use"
                " --engine local"
            ) from None


BatchMib = Annotated[
    int, typer.Option(min=1, max=MIB_MAX, help="MiB of the log in one commit, approximately.")
]
FileMib = Annotated[
    int, typer.Option(min=1, max=MIB_MAX, help="Approximate size of a file, in MiB of the log.")
]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for the range of records and the batch size."""

    start: Annotated[
        Literal["earliest", "latest"],
        typer.Option("--from", help="Start position of a new table."),
    ] = "earliest"
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="Continue if retention deleted records before their export."
        ),
    ] = False
    on_error: Annotated[
        Literal["raise", "skip", "dead-letter"],
        typer.Option(
            help=(
                "How to handle unreadable records: stop the export of the topic, skip them, or"
                " write their offsets to the table <table>__dlq."
            ),
        ),
    ] = "raise"
    batch_mib: BatchMib = 1_024
    file_mib: FileMib = 256

    def sync_options(self) -> "SyncOptions":
        from penstock.lake.table.job import SyncOptions

        return SyncOptions(
            from_latest=self.start == "latest",
            skip_lost=self.skip_lost,
            on_error=self.on_error,
            batch_bytes=self.batch_mib << 20,
            file_bytes=self.file_mib << 20,
        )
