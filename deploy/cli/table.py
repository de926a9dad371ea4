"""`penstock table sync|compact|query`: topics as tables."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from deploy.cli.options import AsJson
from deploy.errors import DeployError, UsageError

if TYPE_CHECKING:
    from lake.table.engines import Engine
    from lake.table.sync import BatchReport, TableSync
    from lake.table.values import ValueFormat
    from lake.table.warehouse import Warehouse

app = typer.Typer(
    help="Topics as tables: Iceberg, or a directory of Parquet.", no_args_is_help=True
)

To = Annotated[
    str, typer.Option("--to", help="iceberg, or parquet: a directory with a log of commits.")
]
Location = Annotated[
    str,
    typer.Option(
        "--warehouse",
        envvar="PENSTOCK_WAREHOUSE",
        help="Where tables lie: a directory, or s3://BUCKET/PREFIX?endpoint=...",
    ),
]
CatalogName = Annotated[str, typer.Option(help="Of the catalog, where several share a database.")]
CatalogType = Annotated[
    str,
    typer.Option(help="sql, glue or rest; SQLite in the warehouse's directory if none is named."),
]
CatalogUri = Annotated[
    str, typer.Option(envvar="PENSTOCK_CATALOG_URI", help="Of a REST or SQL catalog.")
]
CatalogProperty = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE for pyiceberg's catalog; again for more.")
]
Store = Annotated[
    str,
    typer.Option(
        envvar="PENSTOCK_STORE", help="The store that the brokers write to, as in their --store."
    ),
]
EngineName = Annotated[
    str, typer.Option("--engine", help="local: threads of this process; spark: a Spark job.")
]
Master = Annotated[
    str, typer.Option(help="Spark master, as in spark-submit; means --engine spark.")
]
_MIB = 1 << 20


@app.command("sync")
def sync(
    topic: str,
    *,
    store: Store,
    to: To = "iceberg",
    warehouse: Location = "./warehouse",
    table: Annotated[str, typer.Option(help="Its name; the topic's if none is given.")] = "",
    cluster: Annotated[
        str, typer.Option(help="Id of the cluster, if the store holds several.")
    ] = "",
    value_format: Annotated[
        str, typer.Option("--format", help="Of values: raw, json, avro, protobuf.")
    ] = "raw",
    schema: Annotated[
        Path | None,
        typer.Option(help="JSON Schema, .avsc, or a Protobuf descriptor set.", show_default=False),
    ] = None,
    message: Annotated[str, typer.Option(help="Full name of the Protobuf message.")] = "",
    framed: Annotated[
        bool, typer.Option(help="Values begin with Confluent's magic byte and schema id.")
    ] = False,
    mode: Annotated[
        str, typer.Option(help="append, or upsert: the last record of each key.")
    ] = "append",
    partition_by: Annotated[
        str, typer.Option(help="none, or day: of the timestamp, UTC.")
    ] = "none",
    headers: Annotated[
        bool, typer.Option("--headers", help="With a column of the records' headers.")
    ] = False,
    start: Annotated[
        str, typer.Option("--from", help="Where a new table begins: earliest or latest.")
    ] = "earliest",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on when retention was faster than the export.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Leave when the table has everything; else go on until interrupted."
        ),
    ] = False,
    interval_s: Annotated[
        float, typer.Option(min=0.1, help="Between looks for new records.")
    ] = 10.0,
    batch_mib: Annotated[
        int, typer.Option(min=1, help="MiB of the log in one commit, about.")
    ] = 1_024,
    file_mib: Annotated[int, typer.Option(min=1, help="MiB of the log in one file, about.")] = 256,
    catalog_name: CatalogName = "penstock",
    catalog_type: CatalogType = "",
    catalog_uri: CatalogUri = "",
    catalog_property: CatalogProperty = None,
    engine: EngineName = "local",
    master: Master = "",
    as_json: AsJson = False,
) -> None:
    """Write a topic into a table and keep it up to date: every record exactly once, however often
    and wherever this runs.

    With --json each batch is one line. Records that do not decode go to the table <table>__dlq.
    """
    with told_errors():
        from lake.arrow.cluster import StoreCluster
        from lake.table.source import TopicSource
        from lake.table.sync import SyncOptions, TableSync
        from lake.table.warehouse import REJECTS_SUFFIX, table_name_of

        options = SyncOptions(
            value_format=_value_format(value_format, schema, message, framed=framed),
            upsert=_choice("--mode", mode, "append", "upsert") == "upsert",
            by_day=_choice("--partition-by", partition_by, "none", "day") == "day",
            headers=headers,
            from_latest=_choice("--from", start, "earliest", "latest") == "latest",
            skip_lost=skip_lost,
            batch_bytes=batch_mib * _MIB,
            file_bytes=file_mib * _MIB,
        )
        place = _warehouse(
            to, warehouse, Catalog(catalog_name, catalog_type, catalog_uri, catalog_property or [])
        )
        name = table or table_name_of(topic)
        with _engine(engine, master) as runner:
            from lake.table.model import Layout

            tables = place.table(name, options.layout), place.table(name + REJECTS_SUFFIX, Layout())
            from deploy.output import Progress

            with Progress(f"{topic} to {name}", None, "records") as progress:
                run = TableSync(
                    TopicSource(StoreCluster(store, cluster), topic),
                    *tables,
                    runner,
                    options,
                    on_files=progress.advance,
                )
                _run(run, once=once, interval_s=interval_s, as_json=as_json)


def _run(run: "TableSync", *, once: bool, interval_s: float, as_json: bool) -> None:
    rows = rejected = batches = 0
    is_interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise KeyboardInterrupt

    # Python drops an exception that is raised inside the clean-up of an object, Ctrl-C too: hence
    # the flag besides.
    signal.signal(signal.SIGINT, interrupt)
    while True:
        if is_interrupted:
            raise KeyboardInterrupt
        report = run.run_batch()
        if report is not None:
            rows, rejected, batches = rows + report.rows, rejected + report.rejected, batches + 1
            _tell(report, as_json=as_json)
        elif once:
            break
        else:
            time.sleep(interval_s)
    if not as_json:
        print(f"up to date: {rows:,} rows and {rejected:,} dead letters in {batches} batches")


def _tell(report: "BatchReport", *, as_json: bool) -> None:
    import msgspec

    from deploy.output import size

    if as_json:
        print(msgspec.json.encode(report).decode(), flush=True)
        return
    replaced = f", {report.files_replaced} replaced" if report.files_replaced else ""
    print(
        f"batch {report.batch_id}: {report.rows:,} rows, {report.rejected:,} dead letters,"
        f" {report.files} files{replaced}, {size(report.log_bytes)} of log as"
        f" {size(report.parquet_bytes)} in {report.duration_ms:,} ms, {report.remaining:,} to come",
        flush=True,
    )


@app.command("compact")
def compact(
    table: str,
    *,
    to: To = "iceberg",
    warehouse: Location = "./warehouse",
    target_mib: Annotated[
        int, typer.Option(min=1, help="MiB of Parquet in one file, about.")
    ] = 256,
    catalog_name: CatalogName = "penstock",
    catalog_type: CatalogType = "",
    catalog_uri: CatalogUri = "",
    catalog_property: CatalogProperty = None,
    engine: EngineName = "local",
    master: Master = "",
    as_json: AsJson = False,
) -> None:
    """Join the small files of a table, also while it is being written."""
    with told_errors():
        from deploy.output import Progress, print_json
        from lake.table.compact import compact as join

        place = _warehouse(
            to, warehouse, Catalog(catalog_name, catalog_type, catalog_uri, catalog_property or [])
        )
        with (
            _engine(engine, master) as runner,
            Progress(f"compact {table}", None, "records") as progress,
        ):
            report = join(place.existing(table), runner, target_mib * _MIB, progress.advance)
    if as_json:
        print_json(report)
        return
    print(
        f"{table}: {report.files_replaced} files of {report.files_before} became"
        f" {report.files_written}, {report.rows:,} rows"
    )


@app.command("query")
def query(
    sql: str,
    *,
    to: To = "iceberg",
    warehouse: Location = "./warehouse",
    max_rows: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 100,
    catalog_name: CatalogName = "penstock",
    catalog_type: CatalogType = "",
    catalog_uri: CatalogUri = "",
    catalog_property: CatalogProperty = None,
    as_json: AsJson = False,
) -> None:
    """Ask the tables of a warehouse in SQL (DuckDB), for a look. Tables go by their names."""
    with told_errors():
        from deploy.output import print_json, print_table
        from lake.table.query import query as ask

        found: Any = ask(
            _warehouse(
                to,
                warehouse,
                Catalog(catalog_name, catalog_type, catalog_uri, catalog_property or []),
            ),
            sql,
        )
    rows: list[dict[str, Any]] = found.slice(0, max_rows).to_pylist()
    if as_json:
        print_json(rows)
        return
    print_table("", found.column_names, [list(row.values()) for row in rows])
    if found.num_rows > max_rows:
        print(f"{found.num_rows - max_rows:,} more rows; --max-rows shows them")


@contextmanager
def told_errors() -> Generator[None, None, None]:
    """What users can do something about becomes one line. Raises DeployError."""
    try:
        from deploy.node.logs import to_stderr
        from lake.table.errors import InvalidSchema, InvalidTable
        from objectstore.errors import InvalidStoreUrl, ObjectStoreError
        from stream.errors import StreamError
    except ImportError as error:
        raise DeployError(f"{error.name} is missing: install penstock[table]") from None
    to_stderr("warning")
    try:
        yield
    except ImportError as error:
        raise DeployError(f"{error.name} is missing: install penstock[table]") from None
    except (InvalidSchema, InvalidTable, InvalidStoreUrl) as error:
        raise UsageError(str(error)) from None
    except (StreamError, ObjectStoreError) as error:
        raise DeployError(str(error)) from None


class Catalog(NamedTuple):
    """What the options say of it."""

    name: str
    kind: str
    uri: str
    properties: list[str]


def _warehouse(kind: str, location: str, catalog: Catalog) -> "Warehouse":
    from lake.table.warehouse import Warehouse

    given: dict[str, str] = {}
    for item in catalog.properties:
        name, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--catalog-property {item!r}: give NAME=VALUE")
        given[name] = value
    return Warehouse(
        kind=kind,
        location=location,
        catalog_name=catalog.name,
        catalog_type=catalog.kind,
        catalog_uri=catalog.uri,
        catalog_properties=given,
    )


def _value_format(name: str, schema: Path | None, message: str, *, framed: bool) -> "ValueFormat":
    from lake.table.values import ValueFormat

    try:
        content = b"" if schema is None else schema.read_bytes()
    except OSError as error:
        raise UsageError(f"--schema: {error}") from None
    return ValueFormat(name, content, message, framed)


@contextmanager
def _engine(name: str, master: str) -> Generator["Engine", None, None]:
    from lake.table.engines import LocalEngine, SparkEngine

    wanted = _choice("--engine", name, "local", "spark")
    engine: Engine = SparkEngine(master) if master or wanted == "spark" else LocalEngine()
    try:
        yield engine
    finally:
        engine.close()


def _choice(flag: str, given: str, *allowed: str) -> str:
    if given not in allowed:
        raise UsageError(f"{flag} {given!r}: choose one of {', '.join(allowed)}")
    return given
