"""Run `penstock table run|status`: export all topics that declare a table, and show their state."""

import asyncio
import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.base.errors import ExpectedError
from penstock.base.settings import SettingInvalid
from penstock.deploy.cli.lake_errors import one_line_errors
from penstock.deploy.cli.options import ClusterId, Output, WalStore
from penstock.deploy.cli.registry_options import RegistryOptions
from penstock.deploy.cli.table_options import (
    BatchMib,
    CatalogOptions,
    EngineOptions,
    FileMib,
    Headers,
    MaskKeyFile,
    ReadOptions,
    Store,
    read_mask_key,
)
from penstock.deploy.errors import UsageError
from penstock.deploy.output import (
    Format,
    counted,
    print_document,
    print_json_line,
    remark,
    say,
    with_iso_times,
)

if TYPE_CHECKING:
    from penstock.base.health import ServeHealth
    from penstock.deploy.table_runner.health import RunnerHealth
    from penstock.lake.manifest.table_status import RunnerStatus
    from penstock.lake.table.job import SyncOptions
    from penstock.lake.table.runner import RunnerEvent, TableRunner

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class TopicOptions(ReadOptions):
    """Options for all topics of a runner."""

    headers: Headers = False
    mask_key_file: MaskKeyFile = None
    batch_mib: BatchMib = 128
    file_mib: FileMib = 128

    def sync_options(self) -> "SyncOptions":
        from penstock.lake.table.masks import Masking

        masking = Masking(key=read_mask_key(self.mask_key_file))
        return replace(super().sync_options(), headers=self.headers, masking=masking)


@dataclass(frozen=True, kw_only=True)
class RunnerProcess:
    """Options for the process of a runner."""

    name: Annotated[
        str,
        typer.Option(help="Name of this runner, unique if several run."),
    ] = "default"
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Number of topics that are exported at once.")
    ] = 4
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Exit when every table is up to date or has failed, with code 1 if one has.",
        ),
    ] = False
    health_listener: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_HEALTH_LISTENER",
            metavar="HOST:PORT",
            help="Address of /metrics, /startz, /livez and /readyz.",
            show_default=False,
        ),
    ] = ""
    stop_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that batches may take after SIGTERM.")
    ] = 30.0


def run(
    *,
    store: Store,
    wal_store: WalStore = "",
    cluster: ClusterId = "",
    registry: RegistryOptions,
    reading: TopicOptions,
    place: CatalogOptions,
    engine: EngineOptions,
    process: RunnerProcess,
    output: Output = Format.TABLE,
) -> None:
    """Export every topic with the config penstock.table.enable=true to its table, until SIGTERM or
    Ctrl-C. Topics are discovered while the command runs.

    The other configs penstock.table.* of a topic describe its table. Every record is written
    exactly once, even if the command is killed or runs twice. With --engine spark, Spark writes the
    files of large batches. With --json, each event is one line.

    For example: penstock table run --warehouse s3://lake/tables --catalog-uri http://catalog:8181
    """
    if not _NAME.fullmatch(process.name):
        raise UsageError(
            f"--name {process.name!r}: use 1 to 64 characters from A-Z, a-z, 0-9, '_', '-'"
        )
    with one_line_errors("table"), engine.start() as started:
        from penstock.deploy.clients.target import existing_store, find_wal_store
        from penstock.deploy.table_runner.health import RunnerHealth
        from penstock.lake.arrow.cluster import StoreCluster
        from penstock.lake.table.engines import InlineEngine, LargeBatchEngine
        from penstock.lake.table.runner import RunnerOptions, TableRunner
        from penstock.lake.table.topic_export import Exports

        source = StoreCluster(existing_store(store), cluster, wal_store or find_wal_store(store))
        exports = Exports(
            source,
            place.warehouse_of("iceberg"),
            reading.sync_options(),
            registry.registry(),
            LargeBatchEngine(started) if engine.is_spark else InlineEngine(),
        )
        runner = TableRunner(
            source,
            exports.open,
            RunnerOptions(
                name=process.name,
                workers=process.workers,
                once=process.once,
                stop_s=process.stop_timeout,
            ),
            lambda event: _print_event(event, output),
        )
        serve = _health_endpoint(process.health_listener)
        status = asyncio.run(_run(runner, serve, RunnerHealth(runner.state)))
    _end(status, is_once=process.once)


def _health_endpoint(listener: str) -> "ServeHealth":
    from penstock.base.health import no_health_endpoint
    from penstock.base.listeners import parse_listeners

    if not listener:
        return no_health_endpoint
    from penstock.deploy.node.health import serve_at
    from penstock.deploy.table_runner.metrics import metrics_of

    try:
        found = parse_listeners("--health-listener", [listener])[0]
    except SettingInvalid as error:
        raise UsageError(str(error)) from None
    return serve_at(found.host, found.port, metrics_of)


async def _run(
    runner: "TableRunner", serve: "ServeHealth", health: "RunnerHealth"
) -> "RunnerStatus":
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runner.stop)
    async with serve(health):
        return await asyncio.to_thread(runner.run)


def _print_event(event: "RunnerEvent", output: Format) -> None:
    if output is not Format.TABLE:
        print_json_line(event)
        return
    what = f"{event.topic} to {event.table}" if event.topic else "topics of the cluster"
    match event.kind:
        case "committed":
            skipped = f", {counted(event.skipped, 'offset')} skipped" if event.skipped else ""
            say(
                f"{what}: {counted(event.rows, 'row')},"
                f" {counted(event.rejected, 'dead letter')}{skipped},"
                f" {counted(event.remaining, 'record')} left"
            )
        case "failed":
            say(f"{what}: error: {event.error}")
        case "recovered":
            say(f"{what}: continues after an error")
        case _:
            say(f"{what}: {event.kind}")


def _end(status: "RunnerStatus", *, is_once: bool) -> None:
    """Raise ExpectedError if a run with --once has failed."""
    if not is_once:
        return
    if not status.topics and not status.error:
        remark("no topic has the config penstock.table.enable=true")
    failed = [topic.topic for topic in status.topics if topic.error]
    if status.error:
        raise ExpectedError(status.error)
    if failed:
        raise ExpectedError(
            f"{len(failed)} of {counted(len(status.topics), 'export')} failed: {', '.join(failed)}"
        )


def status(*, store: Store, cluster: ClusterId = "", output: Output = Format.TABLE) -> None:
    """Show the exports of table runners, from the status that they write to the store.

    For example: penstock table status --store s3://bucket/cluster
    """
    from penstock.deploy.clients.target import existing_store
    from penstock.deploy.table_runner.statuses import print_statuses, statuses_of

    with one_line_errors("table"):
        found = statuses_of(existing_store(store), cluster)
    if output is not Format.TABLE:
        print_document(output, with_iso_times(found, "updated", "commit"))
        return
    print_statuses(found)
