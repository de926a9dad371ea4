"""Run `penstock mirror`: mirror another cluster, and finish a mirror."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import (
    Format,
    cell,
    counted,
    print_document,
    print_json_line,
    print_table,
    remark,
    report,
    report_with,
    rich_console,
    say,
    size,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.deploy.mirror.plan import TopicPlan
    from penstock.deploy.mirror.session import MirrorSession
    from penstock.deploy.mirror.views import MirrorView

app = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The source, target and filters of a mirror."""

    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="HOST:PORT",
            envvar="PENSTOCK_MIRROR_FROM",
            help="Addresses of brokers of the source, as HOST:PORT,HOST:PORT.",
            show_default=False,
        ),
    ] = ""
    from_config: Annotated[
        Path | None,
        typer.Option(
            "--from-config",
            envvar="PENSTOCK_MIRROR_FROM_CONFIG",
            help="File of client properties for the source, as --command-config for the target.",
            show_default=False,
        ),
    ] = None
    topics: Annotated[
        str,
        typer.Option(
            "--topics",
            metavar="REGEX",
            help="Regular expression (RE2) that must match the whole name of a topic.",
        ),
    ] = ".*"
    exclude: Annotated[
        str,
        typer.Option(
            "--exclude",
            metavar="REGEX",
            help="Exclude topics that match this regular expression.",
            show_default=False,
        ),
    ] = ""
    groups: Annotated[
        str,
        typer.Option(
            "--groups",
            metavar="REGEX",
            help="Copy the offsets of consumer groups that match this regular expression.",
        ),
    ] = ".*"
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help=(
                "Mirror name; needed if several mirrors with translated offsets have the same "
                "source."
            ),
            show_default="the id of the source",
        ),
    ] = ""
    bootstrap: Bootstrap = BOOTSTRAP
    output: Output = Format.TABLE


Interval = Annotated[
    float,
    typer.Option("--interval", help="Seconds between two reports.", min=0.1, max=3_600.0),
]


@app.callback(invoke_without_command=True)
def mirror(
    context: typer.Context,
    *,
    what: _Source,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="Also copy to target topics that already contain records, appending to them.",
        ),
    ] = False,
    no_acls: Annotated[bool, typer.Option("--no-acls", help="Copy no ACLs.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Copy the records that exist at the start, then exit.")
    ] = False,
    interval: Interval = 5.0,
    dry_run: DryRun = False,
) -> None:
    """Copy topics, groups and ACLs of another cluster continuously, until Ctrl-C. The next run
    continues where this one stopped.

    Missing topics and partitions are created, with their configs. A Penstock target preserves
    offsets; an Apache Kafka target assigns new ones, and the offsets of groups are translated. With
    --json, each report is one line.

    For example: penstock mirror --from kafka:9092 --topics "orders.*"
    """
    if context.invoked_subcommand is not None:
        context.obj = what
        return
    from penstock.deploy.mirror.running import run

    with _session(what, append=append, copies_acls=not no_acls) as session:
        if dry_run:
            _print_plan(session, what.output)
            return
        try:
            with _reports(what.output) as show:
                run(session, interval, show, once=once)
        except KeyboardInterrupt:
            remark("stopped; run the same command to continue")


@app.command("status")
def status(context: typer.Context, *, what: _Source) -> None:
    """Show the progress of a mirror, without copying.

    For example: penstock mirror status --from kafka:9092
    """
    with _session(_inherited(context, what)) as session:
        session.observe()
        view = session.view()
    report_with(what.output, view, lambda: rich_console().print(_page(view)))


@app.command("finish")
def finish(
    context: typer.Context,
    *,
    what: _Source,
    timeout: Annotated[
        float,
        typer.Option("--timeout", help="Seconds to wait until everything is copied.", min=0.0),
    ] = 600.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="End the mirror even if the source still receives records, which are not copied.",
        ),
    ] = False,
    dry_run: DryRun = False,
    interval: Interval = 5.0,
) -> None:
    """Finish a mirror, so that clients can move to the target. Stop the producers of the source
    first.

    The command copies the remaining records, sets the offsets of groups one last time, and allows
    producers to write to the target. A running `penstock mirror` then exits.

    For example: penstock mirror finish --from kafka:9092 --topics "orders.*" --dry-run
    """
    from penstock.deploy.mirror.running import finish as finished

    if dry_run:
        with _session(_inherited(context, what), copies_acls=False) as session:
            session.observe()
            view = session.view()
        names = [topic.topic for topic in view.topics]
        report(
            what.output,
            {"would_finish": names, "lag": view.lag},
            f"would finish: {', '.join(names) or 'no topic'}",
            f"records that are not copied yet: {'unknown' if view.lag is None else view.lag}",
        )
        return
    with _session(_inherited(context, what), copies_acls=False) as session:
        with _reports(Format.TABLE if what.output is Format.TABLE else None) as show:
            names = finished(session, interval, show, timeout_s=timeout, force=force)
        target = session.target.where.bootstrap
    report(
        what.output,
        {"finished": names},
        f"finished: {', '.join(names)}",
        f"producers and consumers can now use {target}; groups continue at their positions",
    )


def _inherited(context: typer.Context, what: _Source) -> _Source:
    """Return the options of the subcommand, or those given before it: `penstock mirror --from A
    finish`.
    """
    before = context.obj
    return before if isinstance(before, _Source) and not what.source else what


def _session(what: _Source, *, append: bool = False, copies_acls: bool = True) -> "MirrorSession":
    """Return a session, which connects to both clusters. Raises UsageError."""
    if not what.source:
        raise UsageError("--from is missing: specify brokers of the source, as HOST:PORT")
    from penstock.deploy.clients.security import PLAINTEXT, current_security, read_file
    from penstock.deploy.clients.target import find_brokers
    from penstock.deploy.mirror.cluster import ClusterAddress
    from penstock.deploy.mirror.plan import Selection
    from penstock.deploy.mirror.session import MirrorOptions, MirrorSession

    selection = Selection(what.topics, what.exclude, what.groups)
    selection.check()
    options = MirrorOptions(
        selection=selection, name=what.name, append=append, copies_acls=copies_acls
    )
    security = PLAINTEXT if what.from_config is None else read_file(what.from_config)
    target = find_brokers(what.bootstrap)
    return MirrorSession(
        ClusterAddress(what.source, security, is_source=True),
        ClusterAddress(target.bootstrap, current_security()),
        options,
        lambda text: remark(f"warning: {text}"),
    )


# --- reports --------------------------------------------------------------------------------------


@contextmanager
def _reports(output: Format | None) -> "Generator[Callable[[MirrorView], None]]":
    """Yield a function that prints a view as a live table on a terminal, otherwise as lines. It
    prints nothing for None.
    """
    if output is None:
        yield lambda _: None
    elif output is Format.JSON:
        yield print_json_line
    elif output is not Format.TABLE:
        yield lambda view: print_document(output, view)
    elif not sys.stdout.isatty():
        yield _print_text
    else:
        from rich.live import Live

        with Live(auto_refresh=False, transient=False) as live:
            yield lambda view: live.update(_page(view), refresh=True)


def _print_text(view: "MirrorView") -> None:
    lag = "not known" if view.lag is None else f"{view.lag:,}"
    failed = [topic.topic for topic in view.topics if topic.state == "failed"]
    parts = [
        time.strftime("%H:%M:%S"),
        f"lag {lag}",
        f"copied {counted(view.records, 'record')}, {size(view.bytes)}",
        counted(len(view.topics), "topic"),
        counted(view.groups, "group"),
    ]
    parts += [f"failed: {', '.join(failed)}"] if failed else []
    parts += [f"retrying: {text}" for text in view.problem]
    say("  ".join(parts))


def _page(view: "MirrorView") -> "RenderableType":
    from rich.console import Group
    from rich.table import Table

    table = Table(header_style="bold", caption=None if view.topics else "(nothing)")
    for column in ("topic", "state", "offsets"):
        table.add_column(column, overflow="fold")
    for column in ("partitions", "lag", "records", "size"):
        table.add_column(column, justify="right", overflow="fold")
    for topic in view.topics:
        table.add_row(
            cell(topic.topic),
            topic.state,
            topic.mode or "-",
            f"{topic.partitions:,}",
            "-" if topic.lag is None else f"{topic.lag:,}",
            f"{topic.records:,}",
            size(topic.bytes),
        )
    errors = [f"{topic.topic}: {topic.error}" for topic in view.topics if topic.error]
    lines = [*errors, *(f"retrying: {text}" for text in view.problem)]
    head = f"{view.source} to {view.target}, {counted(view.groups, 'group')}"
    return Group(cell(head), table, *(cell(line) for line in lines))


def _print_plan(session: "MirrorSession", output: Format) -> None:
    from penstock.deploy.mirror.views import PlanView

    plan = session.look()
    groups, acls = session.selected_groups(), sorted(map(str, session.missing_acls()))
    if output is not Format.TABLE:
        view = PlanView(plan.topics, plan.refused, plan.finished, groups, acls)
        print_document(output, view)
        return
    rows: list[tuple[str, str, str, int, str]] = [
        (topic.name, topic.action, topic.mode, topic.partition_count, _changes(topic))
        for topic in plan.topics
    ]
    rows += [(name, "finished", "-", session.partition_count(name), "") for name in plan.finished]
    rows += [
        (name, "refused", "-", session.partition_count(name), reason)
        for name, reason in plan.refused.items()
    ]
    columns = ("topic", "action", "offsets", "partitions", "configs")
    print_table("", columns, sorted(rows))
    print_table("", ("group",), [(name,) for name in groups])
    if acls:
        print_table("", ("ACL to add",), [(text,) for text in acls])


def _changes(topic: "TopicPlan") -> str:
    configs = topic.configs if topic.action == "create" else topic.changes
    return " ".join(
        name if value is None else f"{name}={value}" for name, value in sorted(configs.items())
    )
