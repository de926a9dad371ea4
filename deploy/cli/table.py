"""Run `penstock table sync|compact|maintain|query`: export topics to tables."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.deploy.cli.lake_errors import one_line_errors
from penstock.deploy.cli.option_groups import with_option_groups
from penstock.deploy.cli.options import (
    Output,
    TopicName,
    WalStore,
)
from penstock.deploy.cli.registry_options import RegistryOptions
from penstock.deploy.cli.schema_files import read_schema
from penstock.deploy.errors import UsageError
from penstock.deploy.interrupts import Interrupts
from penstock.deploy.output import Format, counted, report, say

if TYPE_CHECKING:
    from penstock.lake.table.engines import Engine
    from penstock.lake.table.masks import Masking
    from penstock.lake.table.sync import BatchReport, SyncOptions, TableSync
    from penstock.lake.table.values import ValueFormat
    from penstock.lake.table.warehouse import Warehouse

_MIB_MAX: Final = 1 << 20
app = typer.Typer(
    help="Export topics to tables: Iceberg, or a directory of Parquet.", no_args_is_help=True
)


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
ClusterId = Annotated[
    str,
    typer.Option("--cluster-id", help="Cluster id; needed if the store holds several clusters."),
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
class WarehouseOptions(CatalogOptions):
    """Options for the location and type of tables."""

    to: Annotated[
        str,
        typer.Option(
            "--to", help="Table format: iceberg, or parquet (a directory with a commit log)."
        ),
    ] = "iceberg"

    def open(self) -> "Warehouse":
        """Raise UsageError for a property that is not NAME=VALUE."""
        return self.warehouse_of(self.to)


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

    @contextmanager
    def start(self) -> Generator["Engine", None, None]:
        from penstock.lake.table.engines import LocalEngine, SparkEngine

        try:
            engine: Engine = SparkEngine(self.master) if self.is_spark else LocalEngine()
        except ModuleNotFoundError as error:
            raise ExpectedError(
                f"the package {error.name} is missing: {install_hint('table', 'spark')}, or use"
                " --engine local"
            ) from None
        try:
            yield engine
        finally:
            engine.close()


@dataclass(frozen=True, kw_only=True)
class RowOptions(RegistryOptions):
    """Options for the conversion of records to rows."""

    value_format: Annotated[
        str, typer.Option("--format", help="Format of values: raw, json, avro, protobuf.")
    ] = "raw"
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE or ID=FILE",
            help="File with a JSON Schema, Avro schema (.avsc) or Protobuf descriptor set. With"
            " --framed, give the schema of each id, or --schema-registry; the highest id, or FILE,"
            " defines the columns.",
            show_default=False,
        ),
    ] = None
    message: Annotated[str, typer.Option(help="Full name of the Protobuf message.")] = ""
    framed: Annotated[
        bool, typer.Option(help="Values begin with Confluent's magic byte and schema id.")
    ] = False
    subject: Annotated[
        str,
        typer.Option(
            help="Subject in the schema registry whose newest schema defines the columns; default:"
            " TOPIC-value.",
            show_default=False,
        ),
    ] = ""
    mode: Annotated[
        Literal["append", "upsert"],
        typer.Option(help="append, or upsert: keep the last record of each key."),
    ] = "append"
    partition_by: Annotated[
        str,
        typer.Option(
            metavar="FIELDS",
            help=(
                "Partition fields, separated by commas: day(FIELD), hour, month or year,"
                " bucket(N, FIELD), truncate(W, FIELD), or FIELD itself; a bare day is the UTC day"
                " of the record's timestamp, none removes the fields. Default: the fields of the"
                " table."
            ),
            show_default=False,
        ),
    ] = ""
    headers: Headers = False
    unwrap: Annotated[
        Literal["none", "debezium"],
        typer.Option(
            help="none, or debezium: values are Debezium's change events, with --mode upsert."
        ),
    ] = "none"
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=MASK",
            help="Mask a column or a nested field as redact, hash, null or last4, also in dead"
            " letters. Repeatable.",
            show_default=False,
        ),
    ] = None
    mask_key_file: MaskKeyFile = None

    def masking(self) -> "Masking":
        """Raise UsageError if the key cannot be read, and InvalidTable."""
        from penstock.lake.table.masks import Masking, parse_masks

        return Masking(parse_masks(self.mask or ()), read_mask_key(self.mask_key_file))

    def format(self, topic: str) -> "ValueFormat":
        """Raise UsageError if a schema cannot be read, and InvalidSchema."""
        found = self._events(topic)
        return found if self.unwrap == "none" else found._replace(unwrap=self.unwrap)

    def _events(self, topic: str) -> "ValueFormat":
        from penstock.lake.table.values import ValueFormat

        schemas = [read_schema(item) for item in self.schema or []]
        registry = self.registry()
        name = "" if self.value_format == "raw" else self.value_format
        is_framed = self.framed or bool(self.subject) or bool(name and not schemas)
        if registry is not None and is_framed and not any(number for number, _ in schemas):
            if len(schemas) > 1 or (schemas and not name):
                raise UsageError("--schema: specify one schema for the columns, and its --format")
            return ValueFormat.registered(
                registry,
                self.subject or f"{topic}-value",
                self.message,
                name=name,
                schema=schemas[0][1] if schemas else b"",
            )
        if self.subject:
            raise UsageError("--subject requires --schema-registry")
        if self.framed and not name:
            raise UsageError("--framed requires --schema-registry, or --format and --schema")
        return ValueFormat.of(self.value_format, schemas, self.message, framed=self.framed)


BatchMib = Annotated[
    int, typer.Option(min=1, max=_MIB_MAX, help="MiB of the log in one commit, approximately.")
]
FileMib = Annotated[
    int, typer.Option(min=1, max=_MIB_MAX, help="Approximate size of a file, in MiB of the log.")
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
        from penstock.lake.table.sync import SyncOptions

        return SyncOptions(
            from_latest=self.start == "latest",
            skip_lost=self.skip_lost,
            on_error=self.on_error,
            batch_bytes=self.batch_mib << 20,
            file_bytes=self.file_mib << 20,
        )


@dataclass(frozen=True, kw_only=True)
class BatchOptions(ReadOptions):
    """Options for one topic."""

    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help=(
                "Exit when the table is up to date. Without this option, continue until "
                "interrupted."
            ),
        ),
    ] = False
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between checks for new records.")
    ] = 10.0


Store = Annotated[
    str,
    typer.Option(envvar="PENSTOCK_STORE", help="Store of the brokers, as in their --store."),
]


@app.command("sync")
@with_option_groups
def sync(
    topic: TopicName,
    *,
    store: Store,
    wal_store: WalStore = "",
    table: Annotated[str, typer.Option(help="Name of the table; the default is the topic's.")] = "",
    cluster: ClusterId = "",
    rows: RowOptions,
    batches: BatchOptions,
    place: WarehouseOptions,
    engine: EngineOptions,
    output: Output = Format.TABLE,
) -> None:
    """Export a topic to a table and keep it up to date. Every record is written exactly once, even
    after a restart or on another machine.

    With --json, each batch is one line. Records that cannot be decoded are written to the table
    <table>__dlq.

    For example: penstock table sync flights --warehouse ./warehouse --format json --once
    """
    with one_line_errors("table"):
        from penstock.deploy.clients.target import existing_store, find_wal_store
        from penstock.deploy.output import Progress
        from penstock.lake.arrow.cluster import StoreCluster
        from penstock.lake.table.model import Layout
        from penstock.lake.table.source import TopicSource
        from penstock.lake.table.sync import TableSync
        from penstock.lake.table.warehouse import REJECTS_SUFFIX, table_name_of

        options = _sync_options(topic, rows, batches)
        warehouse = place.open()
        name = table or table_name_of(topic)
        cluster_of_topic = StoreCluster(
            existing_store(store), cluster, wal_store or find_wal_store(store)
        )
        with engine.start() as runner:
            tables = (
                warehouse.table(name, options.layout),
                warehouse.table(name + REJECTS_SUFFIX, Layout(keeps_existing=True)),
            )
            with Progress(f"{topic} to {name}", None, "records") as progress:
                run = TableSync(
                    TopicSource(cluster_of_topic, topic),
                    *tables,
                    runner,
                    options,
                    on_files=progress.advance,
                )
                _run(run, once=batches.once, interval_s=batches.interval, output=output)


def _sync_options(topic: str, rows: RowOptions, batches: BatchOptions) -> "SyncOptions":
    from penstock.base.partition_spec import InvalidPartitioning, parse_partition_by

    try:
        partition_by = parse_partition_by(rows.partition_by) if rows.partition_by else None
    except InvalidPartitioning as error:
        raise UsageError(f"--partition-by: {error}") from None
    return replace(
        batches.sync_options(),
        value_format=rows.format(topic),
        upsert=rows.mode == "upsert",
        partition_by=partition_by,
        headers=rows.headers,
        masking=rows.masking(),
    )


def _run(run: "TableSync", *, once: bool, interval_s: float, output: Format) -> None:
    rows = rejected = batches = 0
    with Interrupts() as interrupts:
        while True:
            interrupts.check()
            report = run.run_batch()
            if report is not None:
                rows, rejected = rows + report.rows, rejected + report.rejected
                batches += 1
                _print_report(report, output=output)
            elif once:
                break
            else:
                time.sleep(interval_s)
    if output is Format.TABLE:
        say(
            f"up to date: {counted(rows, 'row')} and {counted(rejected, 'dead letter')} in"
            f" {counted(batches, 'batch', 'batches')}"
        )


def _print_report(report: "BatchReport", *, output: Format) -> None:
    from penstock.deploy.output import print_json_line, size

    if output is not Format.TABLE:
        print_json_line(report)
        return
    replaced = f", {report.files_replaced} replaced" if report.files_replaced else ""
    skipped = f" {counted(report.skipped, 'offset')} skipped," if report.skipped else ""
    say(
        f"batch {report.batch_id}: {counted(report.rows, 'row')},"
        f" {counted(report.rejected, 'dead letter')},{skipped}"
        f" {counted(report.files, 'file')}{replaced}, {size(report.log_bytes)} of log as"
        f" {size(report.parquet_bytes)} in {report.duration_ms:,} ms,"
        f" {counted(report.remaining, 'record')} left"
    )


@app.command("compact")
@with_option_groups
def compact(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.")],
    *,
    target_mib: Annotated[
        int, typer.Option(min=1, max=_MIB_MAX, help="Size of a Parquet file in MiB, approximately.")
    ] = 256,
    place: WarehouseOptions,
    engine: EngineOptions,
    output: Output = Format.TABLE,
) -> None:
    """Compact the small files of a table. This is safe while the table is being written.

    For example: penstock table compact flights --warehouse ./warehouse
    """
    with one_line_errors("table"):
        from penstock.deploy.output import Progress
        from penstock.lake.table.compact import compact as join

        warehouse = place.open()
        with (
            engine.start() as runner,
            Progress(f"compact {table}", None, "records") as progress,
        ):
            done = join(warehouse.existing(table), runner, target_mib << 20, progress.advance)
    skipped = (
        f"; {counted(done.conflicts, 'merge')} skipped, because others replaced the files meanwhile"
        if done.conflicts
        else ""
    )
    report(
        output,
        done,
        f"{table}: {done.files_replaced} of {counted(done.files_before, 'file')} became"
        f" {done.files_written}, {counted(done.rows, 'row')}{skipped}",
    )


@app.command("maintain")
@with_option_groups
def maintain(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.")],
    *,
    snapshot_hours: Annotated[
        float,
        typer.Option(
            help="Hours for which a snapshot is kept after a newer one has replaced it, at least"
            " 1; 0 keeps all."
        ),
    ] = 24,
    orphan_hours: Annotated[
        float,
        typer.Option(
            help="Age in hours at which files without a snapshot are deleted, at least 48; 0 keeps"
            " all."
        ),
    ] = 72,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    place: WarehouseOptions,
    output: Output = Format.TABLE,
) -> None:
    """Expire snapshots of a table, and delete files that no snapshot refers to. Other processes may
    read and write the table at the same time.

    For example: penstock table maintain flights --warehouse ./warehouse --dry-run
    """
    from penstock.base.table_configs import ORPHAN_RETENTION_MS_MIN, SNAPSHOT_RETENTION_MS_MIN

    with one_line_errors("table"):
        from penstock.deploy.output import size
        from penstock.lake.table.model import Retention

        retention = Retention(
            _retention_ms("--snapshot-hours", snapshot_hours, SNAPSHOT_RETENTION_MS_MIN),
            _retention_ms("--orphan-hours", orphan_hours, ORPHAN_RETENTION_MS_MIN),
        )
        found = place.open().existing(table)
        removed = found.maintain(retention, time.time_ns() // 1_000_000, dry_run=dry_run)
    what = "would be removed" if dry_run else "removed"
    report(
        output,
        removed,
        f"{table}: {counted(removed.versions, 'version')} and {counted(removed.files, 'file')}"
        f" ({size(removed.bytes)}) {what}",
    )


def _retention_ms(flag: str, hours: float, min_ms: int) -> int | None:
    """Return milliseconds, or None for 0, which means forever."""
    if hours and hours * 3_600_000 < min_ms:
        raise UsageError(f"{flag} {hours:g}: use at least {min_ms // 3_600_000}, or 0 to keep all")
    return round(hours * 3_600_000) if hours else None


@app.command("query")
@with_option_groups
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The statement.")],
    *,
    max_rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows to show.")] = 100,
    place: WarehouseOptions,
    output: Output = Format.TABLE,
) -> None:
    """Query the tables of a warehouse with SQL (DuckDB). Tables are named as in the warehouse.

    For example: penstock table query 'SELECT carrier, avg(delay) FROM flights GROUP BY 1'
    """
    with one_line_errors("table"):
        from penstock.deploy.sql.forms import print_batches, print_rows
        from penstock.lake.table.query import query as send_request

        found: Any = send_request(place.open(), sql)
    shown = found.slice(0, max_rows)
    if output is not Format.TABLE:
        print_batches(output, shown.column_names, shown.to_batches())
        return
    print_rows(shown)
    if found.num_rows > max_rows:
        say(f"{counted(found.num_rows - max_rows, 'more row')}; use --max-rows to show them")
