"""Run `penstock doctor`: diagnose a deployment."""

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.deploy.cli.confirmation import confirmed
from penstock.deploy.cli.options import Controller, Output, StateFile, Store, WalStore, Yes
from penstock.deploy.clients.slow_servers import report_slow_servers
from penstock.deploy.errors import UsageError, near_hint
from penstock.deploy.node import logs
from penstock.deploy.output import (
    Format,
    StepProgress,
    cell,
    counted,
    report_with,
    rich_console,
    size,
)
from penstock.objectstore.errors import InvalidStoreUrl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.deploy.doctor.examination import DoctorOptions
    from penstock.deploy.doctor.inventory import Suspect
    from penstock.deploy.doctor.report import Report

_AGE = re.compile(r"(\d{1,9})(s|m|h|d)")
_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What to check, and what to do with the findings."""

    store: Store = ""
    wal_store: WalStore = ""
    controller: Controller = None
    state_file: StateFile = None
    cluster_id: Annotated[
        str,
        typer.Option(
            help="Cluster id; needed with --store alone if the store holds several clusters."
        ),
    ] = ""
    objects: Annotated[
        bool,
        typer.Option(
            "--objects/--no-objects", help="Compare the objects in the bucket with the metadata."
        ),
    ] = True
    listener: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Check only these listeners of brokers; `first` is the one that brokers use among "
                "themselves. Repeatable."
            ),
            show_default=False,
        ),
    ] = None
    accept: Annotated[
        list[str] | None,
        typer.Option(help="Ignore findings with this code. Repeatable.", show_default=False),
    ] = None
    delete_orphans: Annotated[
        bool,
        typer.Option("--delete-orphans", help=("Delete orphaned objects, after confirmation.")),
    ] = False
    older_than: Annotated[str, typer.Option(help="Minimum age of orphans: 90s, 30m, 12h, 7d.")] = (
        "1d"
    )
    yes: Yes = False
    settle: Annotated[
        float,
        typer.Option(
            help="Seconds that failovers and moves may take before they are reported.",
            min=0.0,
            max=600.0,
        ),
    ] = 5.0
    records: Annotated[
        int,
        typer.Option(
            help=(
                "Also read the newest N offsets of each partition from the store, and list records"
                " that consumers cannot read."
            ),
            metavar="N",
            min=0,
        ),
    ] = 0


def doctor(*, given: _Options, output: Output = Format.TABLE) -> None:
    """Check a deployment: store, clocks, controllers, versions, brokers, listeners, partitions,
    clients, WALs, backup, manifest, objects.

    Prints each problem with a way to fix it. Exit code 0: no problem; 1: a finding needs action; 2:
    a check could not be performed. With --store alone, only the contents of the store are checked.

    For example: penstock doctor --store s3://my-bucket

    penstock doctor --store s3://my-bucket --records 10000
    """
    from penstock.deploy.clients.target import existing_store, find_wal_store
    from penstock.deploy.doctor.examination import DoctorOptions
    from penstock.deploy.doctor.findings import KINDS
    from penstock.deploy.doctor.record_scan import missing_package

    unknown = [code for code in given.accept or () if code not in KINDS]
    if unknown:
        hint = near_hint(unknown[0], KINDS, "docs/reference/doctor.md lists them")
        raise UsageError(f"--accept {unknown[0]!r} is not a finding; {hint}")
    if given.records and (package := missing_package()):
        raise UsageError(f"--records needs the package {package}: {install_hint('reader')}")
    store_url, controllers = _resolve_addresses(given.store, given.controller, given.state_file)
    options = DoctorOptions(
        store=existing_store(store_url) if store_url else "",
        controllers=controllers,
        wal_store=given.wal_store or find_wal_store(store_url, given.state_file),
        cluster_id=given.cluster_id,
        listeners=frozenset(given.listener or ()),
        accept=frozenset(given.accept or ()),
        objects=given.objects,
        delete=given.delete_orphans,
        older_than_ms=_age_ms(given.older_than),
        older_than=given.older_than,
        settle_s=given.settle,
        records=given.records,
    )
    report = _examine(options, send_request=not given.yes)
    report_with(output, report, lambda: _print_report(report))
    raise typer.Exit(report.exit_code)


def _resolve_addresses(
    store: str, controller: str | None, state_file: Path | None
) -> tuple[str, str]:
    """Return the given store and controllers; if neither is given, those of the running `penstock
    dev`. Raises UsageError.
    """
    if controller:
        from penstock.deploy.clients.metadata import find_controller

        controller = find_controller(controller, None, os.environ)
    if store or controller:
        return store, controller or ""
    from penstock.deploy.clients import state_file as states
    from penstock.deploy.clients.controllers import use_tls
    from penstock.deploy.clients.profiles import current_profile
    from penstock.deploy.clients.target import connect_as, dev_cluster

    profile = current_profile().profile
    if state_file is None and (profile.store or profile.controller):
        return profile.store, profile.controller
    state = dev_cluster(state_file)
    if state is None:
        name = current_profile().name
        missing = f"no running one described in {state_file or states.default_path(os.environ)}"
        if name and state_file is None:
            missing = f"profile {name} names neither controllers nor a store"
        raise UsageError(
            f"no cluster given, and {missing}: pass --controller HOST:PORT, --store URL, or both"
        )
    use_tls(state.controller_tls)
    connect_as(state)
    # A `memory:` store exists only in the process that created it.
    is_shared = not state.store_url.startswith("memory:")
    return state.store_url if is_shared else "", state.controller


def _age_ms(text: str) -> int:
    match = _AGE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--older-than {text!r} is invalid: use a number with s, m, h or d, as in 1d"
        )
    return int(match[1]) * _MS[match[2]]


def _examine(options: "DoctorOptions", *, send_request: bool) -> "Report":
    from penstock.deploy.doctor.examination import Examination

    logs.to_stderr("error")
    report_slow_servers()
    steps = StepProgress()

    def confirm(orphans: "Sequence[Suspect]") -> bool:
        steps.close()
        return not send_request or _confirm_deletion(orphans)

    try:
        return asyncio.run(Examination(options, steps.advance, confirm).run())
    except InvalidStoreUrl as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise ExpectedError(f"the store cannot be opened: {error}") from None
    finally:
        steps.close()


def _confirm_deletion(orphans: "Sequence[Suspect]") -> bool:
    total = sum(orphan.size_bytes for orphan in orphans)
    return confirmed(
        f"delete {counted(len(orphans), 'object')} ({size(total)}), beginning with"
        f" {orphans[0].key}?"
    )


def _print_report(report: "Report") -> None:
    from rich.table import Table

    styles = {
        "ok": "green",
        "hint": "cyan",
        "unchecked": "dim",
        "warn": "yellow",
        "fail": "bold red",
    }
    table = Table(
        title=cell(f"cluster {report.cluster_id or '(unknown)'}"),
        title_justify="left",
        header_style="bold",
    )
    table.add_column("check")
    table.add_column("level")
    table.add_column("summary", overflow="fold")
    for check in report.checks:
        table.add_row(
            check.name,
            f"[{styles[check.level.value]}]{check.level.value}[/]",
            cell(check.summary),
        )
    console = rich_console()
    console.print(table)
    for check in report.checks:
        for finding in check.findings:
            console.print(
                f"[{styles[finding.level.value]}]{finding.level.value}[/] {finding.code}: ", end=""
            )
            console.print(cell(finding.sentence))
            console.print(cell(f"  -> {finding.mend}"))
    if report.accepted:
        codes = ", ".join(finding.code for finding in report.accepted)
        console.print(cell(f"accepted: {codes}"))
    if report.deleted:
        console.print(cell(f"deleted: {counted(report.deleted, 'orphan')}"))
    console.print(cell(report.verdict))
