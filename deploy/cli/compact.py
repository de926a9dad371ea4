"""Run `penstock compact`: rewrite small objects of a topic into large ones, in this process or with
Spark, without load on brokers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.lake_errors import one_line_errors
from penstock.deploy.cli.options import (
    ClusterId,
    Controllers,
    DryRun,
    Output,
    Store,
    TopicName,
    WalStore,
)
from penstock.deploy.cli.table_options import EngineOptions
from penstock.deploy.output import (
    Format,
    Progress,
    counted,
    report_table,
    report_with,
    say,
    size,
)

if TYPE_CHECKING:
    from penstock.deploy.cli.compact_job import Target
    from penstock.lake.rewrite.plan import RewriteOptions
    from penstock.lake.rewrite.run import RewriteReport
    from penstock.lake.table.engines import Engine

_MIB = 1 << 20
_MAX_GIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class _Options:
    """How to compact, and how much."""

    target_mib: Annotated[
        int,
        typer.Option(
            help=(
                "Target size of an object in MiB. Objects of at least half this size are not"
                " rewritten."
            ),
            min=1,
            max=1_024,
        ),
    ] = 64
    max_gib: Annotated[
        float, typer.Option(help="Stop after rewriting this many GiB.", min=0.0, max=_MAX_GIB)
    ] = _MAX_GIB
    ttl_s: Annotated[
        int,
        typer.Option(
            "--ttl",
            help="Seconds after which objects of a killed run are deleted.",
            min=1,
            max=3_600,
        ),
    ] = 1_800
    dry_run: DryRun = False
    by_key: Annotated[
        bool,
        typer.Option(
            "--by-key",
            help=(
                "Compact the log instead of merging objects: keep only the newest record of each "
                "key. Requires cleanup.policy=compact."
            ),
        ),
    ] = False
    key_map_mib: Annotated[
        int,
        typer.Option(
            help=(
                "With --by-key: memory for the keys of one partition in MiB. 128 MiB hold about "
                "620,000 keys; more keys need several passes."
            ),
            min=1,
            max=65_536,
        ),
    ] = 128


def compact(
    topic: TopicName,
    *,
    store: Store = "",
    wal_store: WalStore = "",
    cluster: ClusterId = "",
    controllers: Controllers,
    engine: EngineOptions,
    what: _Options,
    output: Output = Format.TABLE,
) -> None:
    """Rewrite the small objects of a topic into large ones. Offsets and records do not change, and
    clients are not affected.

    With --by-key, compact the log like brokers: keep only the newest record of each key.

    The command can run at any time, concurrently with other runs, and again after being killed.

    For example: penstock compact orders --dry-run
    """
    from penstock.deploy.cli.compact_job import Target
    from penstock.deploy.clients.target import existing_store, find_store, find_wal_store
    from penstock.lake.rewrite.plan import RewriteOptions

    options = RewriteOptions(
        target_bytes=what.target_mib * _MIB,
        total_bytes_max=int(what.max_gib * (1 << 30)),
        ttl_ms=what.ttl_s * 1_000,
    )
    url = existing_store(store or find_store(controllers.state_file))
    target = Target(url, cluster, topic, wal_store or find_wal_store(url, controllers.state_file))
    with one_line_errors("reader"):
        if what.dry_run and not what.by_key:
            _show_plan(target, options, output=output)
            return
        address = controllers.find()
        with engine.start() as runner:
            if what.by_key:
                from penstock.deploy.cli.compact_by_key import ByKeyJob, ByKeyLimits, compact_by_key

                limits = ByKeyLimits(options.target_bytes, what.key_map_mib * _MIB, options.ttl_ms)
                job = ByKeyJob(target, address, runner, limits)
                compact_by_key(job, plan_only=what.dry_run, output=output)
            else:
                _rewrite(target, address, runner, options, output=output)


def _rewrite(
    target: "Target", address: str, engine: "Engine", options: "RewriteOptions", *, output: Format
) -> None:
    from penstock.deploy.cli.compact_job import plan_rewrite, rewrite_topic

    total = sum(item.compacted_bytes for item in plan_rewrite(target, options))
    with Progress(f"compact {target.topic}", total, "bytes") as progress:
        report = rewrite_topic(target, address, engine, options, progress.advance)
    report_with(output, report, lambda: _print_report(report))
    if report.damaged:
        raise ExpectedError(
            "these objects could not be read and were not rewritten:\n" + "\n".join(report.damaged)
        )
    if report.unresolved:
        raise ExpectedError(
            f"{counted(report.unresolved, 'compaction')} still conflicted at the end: other"
            " processes compacted or trimmed the objects. Nothing is lost; run the command again"
        )


def _print_report(report: "RewriteReport") -> None:
    sources = sum(item.sources_replaced for item in report.partitions)
    written = sum(item.objects_written for item in report.partitions)
    if not sources:
        say(f"{report.topic}: nothing to rewrite in {counted(len(report.partitions), 'partition')}")
        return
    rewritten = size(sum(item.rewritten_bytes for item in report.partitions))
    before = sum(item.objects_before for item in report.partitions)
    say(
        f"{report.topic}: ranges of {sources:,} of {counted(before, 'object')} became"
        f" {counted(written, 'object')}, {rewritten} in {counted(report.rounds, 'round')}"
    )


def _show_plan(target: "Target", options: "RewriteOptions", *, output: Format) -> None:
    from penstock.deploy.cli.compact_job import plan_rewrite

    plans = plan_rewrite(target, options)
    partitions = [
        {
            "partition": plan.partition,
            "objects": plan.object_count,
            "size_bytes": plan.size_bytes,
            "sources": plan.source_count,
            "rewritten_bytes": plan.compacted_bytes,
            "new_objects": len(plan.compactions),
        }
        for plan in plans
    ]
    report_table(
        output,
        {"topic": target.topic, "partitions": partitions},
        f"{target.topic}: what would be rewritten",
        ["partition", "objects", "size", "to rewrite", "size", "into"],
        [
            (
                p.partition,
                p.object_count,
                size(p.size_bytes),
                p.source_count,
                size(p.compacted_bytes),
                len(p.compactions),
            )
            for p in sorted(plans, key=lambda item: item.partition)
        ],
    )
