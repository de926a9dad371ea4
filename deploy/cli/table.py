"""Run `penstock table sync|compact|maintain|query`: export topics to tables."""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.deploy.cli.input_files import read_schema
from penstock.deploy.cli.lake_errors import one_line_errors
from penstock.deploy.cli.options import ClusterId, Output, TopicName, WalStore
from penstock.deploy.cli.registry_options import RegistryOptions
from penstock.deploy.cli.table_options import (
    MIB_MAX,
    CatalogOptions,
    EngineOptions,
    Headers,
    MaskKeyFile,
    ReadOptions,
    Store,
    read_mask_key,
)
from penstock.deploy.cli.table_run import run, status
from penstock.deploy.errors import UsageError
from penstock.deploy.interrupts import Interrupts
from penstock.deploy.output import Format, Progress, counted, print_json_line, report, say, size

if TYPE_CHECKING:
    from penstock.lake.table.job import SyncOptions
    from penstock.lake.table.masks import Masking
    from penstock.lake.table.sync import BatchReport, TableSync
    from penstock.lake.table.values import ValueFormat
    from penstock.lake.table.warehouse import Warehouse

app = typer.Typer(
    help="Export topics to tables: Iceberg, or a directory of Parquet.", no_args_is_help=True
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


@app.command("sync")
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
def compact(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.")],
    *,
    target_mib: Annotated[
        int, typer.Option(min=1, max=MIB_MAX, help="Size of a Parquet file in MiB, approximately.")
    ] = 256,
    place: WarehouseOptions,
    engine: EngineOptions,
    output: Output = Format.TABLE,
) -> None:
    """Compact the small files of a table. This is safe while the table is being written.

    For example: penstock table compact flights --warehouse ./warehouse
    """
    with one_line_errors("table"):
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


app.command("run")(run)
app.command("status")(status)
