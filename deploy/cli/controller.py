"""Run `penstock controller recover`: rebuild the metadata from the object store after all
controllers lost their disks. Without a subcommand, `penstock controller` runs a node
(`deploy.node.process`).
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ExpectedError, StreamError
from penstock.controller.api.errors import ControllerError
from penstock.deploy.cli.options import ClusterId, Output
from penstock.deploy.clients.slow_servers import report_slow_servers
from penstock.deploy.errors import UsageError
from penstock.deploy.output import (
    Format,
    StepProgress,
    counted,
    print_table,
    report_with,
    say,
    size,
)
from penstock.objectstore.errors import ObjectStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.controller.disaster_recovery.plan import Gap
    from penstock.controller.disaster_recovery.report import Report


app = typer.Typer(
    help="Run a controller, or recover a cluster that lost all controllers.", no_args_is_help=True
)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The cluster, and how to recover it."""

    store: Annotated[
        str,
        typer.Option(
            "--from",
            help=(
                "Store of the cluster: s3://BUCKET/PREFIX?endpoint=URL&region=NAME, gs://BUCKET/PREFIX,"
                " az://ACCOUNT/CONTAINER/PREFIX or file:DIR."
            ),
        ),
    ]
    wal_store: Annotated[
        str,
        typer.Option(
            "--wal-store",
            envvar="PENSTOCK_WAL_STORE",
            help="WAL store of the cluster (`wal.store`); needed if the cluster has one.",
            show_default=False,
        ),
    ] = ""
    abandon_wal_store: Annotated[
        bool,
        typer.Option(
            "--abandon-wal-store",
            help=(
                "Recover without the WAL store, which is permanently lost. Needs its URL"
                " (--wal-store), and --accept-loss if records are lost with it."
            ),
        ),
    ] = False
    cluster_id: ClusterId = ""
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the changes without writing anything."),
    ] = False
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Recover even if the store was written to recently; running nodes are fenced.",
        ),
    ] = False
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help=(
                "Recover even if data is missing: each partition then starts after its last "
                "missing object."
            ),
        ),
    ] = False
    voters: Annotated[
        str,
        typer.Option(
            "--voters",
            help="Ids of the controllers that will run, as in 0,1,2; default: the previous ones.",
        ),
    ] = ""


@app.command()
def recover(*, given: _Options, output: Output = Format.TABLE) -> None:
    """Rebuild the metadata from the store after all controllers have lost their disks. No
    acknowledged record is lost.

    Stop all controllers and brokers first. It is safe to run this again.

    For example: penstock controller recover --from s3://my-bucket --dry-run
    """
    voters = _voters(given.voters)
    report_slow_servers()
    try:
        report = asyncio.run(_recover(given, voters))
    except (ControllerError, ObjectStoreError, StreamError) as error:
        raise ExpectedError(str(error)) from error
    report_with(output, report, lambda: _print_report(report, given.store, given.wal_store))


def _voters(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts) or len(set(parts)) != len(parts):
        raise UsageError(f"--voters {text!r} is invalid: use distinct controller ids, as in 0,1,2")
    return tuple(sorted(map(int, parts)))


async def _recover(given: _Options, voters: tuple[int, ...]) -> "Report":
    from penstock.base.clock import wall_ms
    from penstock.controller.disaster_recovery.recovery import Recovery, cluster_ids
    from penstock.deploy.clients.target import existing_store
    from penstock.objectstore.url import open_store
    from penstock.stream.wal.wal_store import close_stores
    from penstock.stream.wal.wal_store_url import open_wal_store

    existing_store(given.store, "--from")
    wal_store = open_wal_store(given.wal_store, given.store)
    store = open_store(given.store)
    steps = StepProgress()
    try:
        cluster_id = given.cluster_id
        if not cluster_id:
            known = await cluster_ids(store)
            if len(known) != 1:
                raise UsageError(
                    f"--cluster-id is needed: the store holds {', '.join(known) or 'no cluster'}"
                )
            cluster_id = known[0]
        recovery = Recovery(
            store,
            cluster_id,
            now_ms=wall_ms,
            voters=voters,
            progress=lambda what, _: steps.advance(what),
            wal_store=wal_store,
            abandon_wal_store=given.abandon_wal_store,
        )
        if given.dry_run:
            return await recovery.look()
        return await recovery.run(force=given.force, accept_loss=given.accept_loss)
    finally:
        steps.close()
        await close_stores(store, wal_store)


def _print_report(report: "Report", store: str, wal_store: str) -> None:
    from penstock.objectstore.url import redact_url

    snapshot = "none" if report.snapshot_offset is None else f"offset {report.snapshot_offset:,}"
    say(
        f"cluster {report.cluster_id}: {counted(report.topic_count, 'topic')},"
        f" {counted(report.partition_count, 'partition')}"
    )
    say(
        f"snapshot: {snapshot}; backup: {counted(report.backup_object_count, 'object')}, up to"
        f" offset {report.backup_offset:,}"
    )
    if report.quiet_ms is not None:
        say(f"last write: {report.quiet_ms / 1_000:,.1f} s ago")
    _print_wals(report)
    if report.orphan_count:
        say(f"orphaned objects: {report.orphan_count:,}; they will be deleted")
    is_written = report.new_offset is not None or report.already_recovered
    for store_id in report.lost_wal_stores:
        state = "is" if is_written else "will be"
        say(f"WAL store {store_id} {state} abandoned: no process uses it again")
    if report.gaps:
        _print_gaps("MISSING", report.gaps)
    if report.given_up:
        _print_gaps("GIVEN UP WITH --accept-loss", report.given_up)
    say(*_next_steps(report, redact_url(store), redact_url(wal_store) if wal_store else ""))


def _print_wals(report: "Report") -> None:
    columns = ["node", "epoch", "committed up to slot", "end", "slots", "in the backup"]
    rows = [
        (
            wal.node_id,
            wal.node_epoch,
            wal.start,
            wal.end,
            wal.slot_count,
            "yes" if wal.known else "NO",
        )
        for wal in report.wals
    ]
    print_table("WALs that have not ended", columns, rows)
    say(
        f"found in them: {counted(report.range_count, 'range')},"
        f" {counted(report.record_count, 'record')}, {size(report.size_bytes)}"
    )


def _print_gaps(title: str, gaps: "Sequence[Gap]") -> None:
    from penstock.controller.disaster_recovery.plan import END_UNKNOWN

    columns = ["topic", "partition", "from offset", "to offset", "what"]
    rows = [
        (
            gap.topic or "?",
            gap.partition,
            gap.start_offset,
            "unknown" if gap.end_offset == END_UNKNOWN else gap.end_offset,
            gap.what,
        )
        for gap in gaps
    ]
    print_table(title, columns, rows)


def _next_steps(report: "Report", store: str, wal_store: str) -> list[str]:
    if report.new_offset is None and not report.already_recovered:
        return ["nothing was written; run it without --dry-run"]
    done = (
        "the cluster has been recovered before"
        if report.already_recovered
        else f"recovered: the new history begins at offset {report.new_offset:,}"
    )
    voters = ",".join(map(str, report.voters))
    wals = f" --wal-store '{wal_store}'" if wal_store else ""
    return [
        done,
        f"Now start controllers {voters} with empty data directories and this cluster id, then the"
        " brokers:",
        f"  penstock controller --store '{store}'{wals} --cluster-id {report.cluster_id}"
        " --metadata-log-dir EMPTY_DIRECTORY [--controller-quorum-voters ...]",
        "Lost are changes that were not yet backed up (normally of the last second) of:"
        " reassignments, preferred elections, configs, deleted records.",
    ]
