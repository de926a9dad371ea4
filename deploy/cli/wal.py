"""Run `penstock wal`: move WALs between stores, show lost or damaged WAL slots and the records lost
with a WAL store, and accept such losses.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ExpectedError, StreamError
from penstock.controller.api.errors import ControllerError
from penstock.deploy.cli.options import Controllers, Output, Store, WalStore
from penstock.deploy.clients.slow_servers import report_slow_servers
from penstock.deploy.node import logs
from penstock.deploy.output import Format, print_table, report_with, say
from penstock.objectstore.errors import ObjectStoreError

if TYPE_CHECKING:
    from penstock.deploy.doctor.lost_wal_store import Abandonment
    from penstock.deploy.doctor.wal_move import WalMove
    from penstock.deploy.doctor.wal_survey import WalSurvey

app = typer.Typer(no_args_is_help=True, help="Move, inspect and repair the WALs of brokers.")

AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Accept the loss of the listed records, so that the partitions continue without them.",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        help="Seconds to wait until the partitions have leaders again.",
        min=1.0,
        max=3_600.0,
    ),
]


@app.command("repair")
def repair(
    *,
    store: Store = "",
    wal_store: WalStore = "",
    controllers: Controllers,
    node: Annotated[
        int, typer.Option("--node", help="Only the WALs of this broker.", show_default=False)
    ] = -1,
    accept_loss: AcceptLoss = False,
    wait: Wait = 90.0,
    output: Output = Format.TABLE,
) -> None:
    """Show the lost or damaged WAL slots of dead brokers, and the records that are lost with them.
    Nothing is changed by default.

    If possible, restore the objects from bucket versions: recovery finds them within 30 s, and
    nothing is lost. With --accept-loss, each listed partition ends before the first of these slots
    that may affect it. This cannot be undone.

    For example: penstock wal repair
    """
    from penstock.deploy.clients.target import existing_store, find_store, find_wal_store

    address = controllers.find()
    url = existing_store(store or find_store(controllers.state_file))
    wal_url = wal_store or find_wal_store(url, controllers.state_file)
    with _one_line_errors():
        surveys, ended = asyncio.run(
            _repair(url, wal_url, address, node, accept=accept_loss, wait_s=wait)
        )
    document = {"wals": surveys, "accepted": accept_loss, "ended": ended}
    report_with(
        output, document, lambda: _print_surveys(surveys, accepted=accept_loss, ended=ended)
    )


@contextmanager
def _one_line_errors() -> Generator[None]:
    """Raise ExpectedError for errors of the store and of the controllers."""
    logs.to_stderr("warning")
    report_slow_servers()
    try:
        yield
    except (ControllerError, ObjectStoreError, StreamError, TimeoutError) as error:
        raise ExpectedError(str(error) or "the controllers did not respond in time") from error


async def _repair(
    url: str, wal_url: str, address: str, node: int, *, accept: bool, wait_s: float
) -> "tuple[list[WalSurvey], bool]":
    """Return the damaged WALs, and whether all of them have ended in the meantime."""
    from penstock.base.ids import WalSequence
    from penstock.controller.api.messages import PutKeyValue
    from penstock.controller.metadata.wal_losses import (
        acceptance_key,
        accepted_losses,
        encode_slots,
    )
    from penstock.deploy.clients.controllers import connect
    from penstock.deploy.doctor.metadata import LiveMetadata
    from penstock.deploy.doctor.wal_survey import reach_wal_stores, still_lost, survey_wals
    from penstock.stream.wal.wal_store_url import open_stores

    stores, metadata = open_stores(url, wal_url), LiveMetadata(address)
    client = connect(address)
    try:
        await metadata.start()
        await metadata.refresh()
        await reach_wal_stores(stores, metadata.image)
        surveys = await survey_wals(stores, metadata.image)
        await metadata.refresh()
        surveys = [
            item
            for item in still_lost(surveys, metadata.image)
            if not item.is_alive and node in (-1, item.node_id)
        ]
        if not accept or not surveys:
            return surveys, False
        for survey in surveys:
            slots = accepted_losses(metadata.image, survey.writer) | {
                WalSequence(slot.sequence) for slot in survey.slots
            }
            try:
                value = encode_slots(slots)
            except ValueError as error:
                raise ExpectedError(str(error)) from error
            await client.put_key_value(PutKeyValue(key=acceptance_key(survey.writer), value=value))
        deadline = asyncio.get_running_loop().time() + wait_s
        while running := {wal.writer for wal in metadata.image.nodes.running_wals()} & {
            item.writer for item in surveys
        }:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.2)
            await metadata.refresh()
        return surveys, not running
    finally:
        await client.close()
        await metadata.close()
        await stores.close()


def _print_surveys(surveys: "list[WalSurvey]", *, accepted: bool, ended: bool) -> None:
    if not surveys:
        say("no WAL slot of a dead broker is lost or damaged")
        return
    slots = [
        (item.node_id, item.node_epoch, slot.sequence, slot.problem)
        for item in surveys
        for slot in item.slots
    ]
    print_table("Slots that are lost or damaged", ["broker", "epoch", "slot", "problem"], slots)
    rows = [
        (tail.name, tail.start_offset, _up_to(tail.end_offset), ", ".join(tail.keys))
        for item in surveys
        for tail in item.partitions
    ]
    print_table(
        "Records that are lost with them",
        ["partition", "from offset", "to offset", "lost slots"],
        rows,
    )
    if not accepted:
        say(
            "nothing was changed. Restore these objects (`aws s3api list-object-versions`);"
            " recovery then continues within 30 s."
        )
        say(
            "If they cannot be restored, run this again with --accept-loss: the partitions continue"
            " without these records."
        )
    elif ended:
        say("the loss is accepted, and the partitions can be led again")
    else:
        say(
            "the loss is accepted, but the WALs have not ended yet: look for"
            " wal_recovery_failed in the logs of the brokers"
        )


def _up_to(end_offset: int | None) -> str:
    return "unknown: perhaps none is lost" if end_offset is None else f"{end_offset - 1:,}"


@app.command("abandon")
def abandon(
    *,
    controllers: Controllers,
    store_id: Annotated[
        int | None,
        typer.Option(
            "--id", help="Id of the WAL store; default: the only one.", show_default=False
        ),
    ] = None,
    accept_loss: AcceptLoss = False,
    wait: Wait = 90.0,
    output: Output = Format.TABLE,
) -> None:
    """Show the records that are lost with the WAL store, and continue without it. Nothing is
    changed by default.

    If the WAL store may come back, wait for it, because then nothing is lost. With --accept-loss,
    the partitions of dead brokers continue without the listed records, and no process uses this WAL
    store again, even if it returns. This cannot be undone.

    For example: penstock wal abandon
    """
    from penstock.deploy.doctor.lost_wal_store import abandon_wal_store

    address = controllers.find()
    with _one_line_errors():
        found = asyncio.run(abandon_wal_store(address, store_id, accept=accept_loss, wait_s=wait))
    report_with(output, found, lambda: _print_abandonment(found, accepted=accept_loss))


def _print_abandonment(found: "Abandonment", *, accepted: bool) -> None:
    say(f"WAL store {found.store_id} at {found.url}, UUID {found.uuid}")
    columns = ["partition", "from offset", "to offset", "what"]
    for title, gaps in (
        ("Records that are lost with it", found.lost),
        ("Other records that are removed", found.removed),
    ):
        rows = [
            (
                f"{gap.topic or '?'}-{gap.partition}",
                gap.start_offset,
                _up_to(gap.end_offset if gap.end_offset >= 0 else None),
                gap.what,
            )
            for gap in gaps
        ]
        if rows:
            print_table(title, columns, rows)
    if not found.lost:
        say("no partition loses records")
    if found.done:
        say("the WAL store is abandoned, and no partition refers to it any more")
    elif found.abandoned:
        say(
            "the WAL store is abandoned; the controller is still ending the WALs in it, and"
            " replacing the lost records"
        )
    elif found.brokers:
        say(
            f"the WALs of live brokers {', '.join(map(str, found.brokers))} are in it: they leave"
            " it once it fails for wal.fallback.after.ms; if that is 0, stop them first"
        )
    elif not accepted:
        say(
            "nothing was changed. If the WAL store is permanently lost, run this again with"
            " --accept-loss"
        )


@app.command("move")
def move(
    *,
    controllers: Controllers,
    to: Annotated[
        str,
        typer.Option("--to", help="`store`, or the URL of the WAL store.", show_default=False),
    ] = "",
    status: Annotated[
        bool, typer.Option("--status", help="Only show what is left in the WAL store.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", help="Seconds to wait until nothing is left.", min=0.0, max=86_400.0
        ),
    ] = 90.0,
    output: Output = Format.TABLE,
) -> None:
    """Move the WALs of all brokers from the WAL store to `store`, or back, while they run.

    Brokers move one after another, and leaders rewrite the records that only the WAL store
    contains. The WAL store then ends: nodes and readers no longer need it, and it is never used
    again. Until then, `--to` with the URL of the WAL store undoes the move. The nodes continue if
    this command is interrupted; run it again until it reports that the WAL store is drained, with
    exit status 0. Before that, the exit status is 1.

    For example: penstock wal move --to store
    """
    from penstock.deploy.doctor.wal_move import STORE, is_done, move_wals
    from penstock.objectstore.url import location

    if bool(to) == status:
        raise ExpectedError("specify either --to or --status")
    address = controllers.find()
    with _one_line_errors():
        target = to if to in {"", STORE} else location(to)
        found = asyncio.run(move_wals(address, target, wait_s=wait))
    report_with(output, found, lambda: _print_move(found, target))
    if to and not is_done(found, target):
        raise typer.Exit(1)


def _print_move(found: "WalMove", target: str) -> None:
    say(f"WAL store {found.store_id} at {found.url}, UUID {found.uuid}: {found.state}")
    if found.state == "drained":
        if target:  # otherwise, the metadata backup may not contain the end yet
            say(
                "nothing refers to it any more: remove wal.store from the configuration of all"
                " nodes"
            )
        return
    if target == "store" and found.state != "draining":
        say("it is no longer being drained: another command has ended this move")
    for what, node_ids in (
        ("WALs of running brokers in it", found.brokers),
        ("WALs of running brokers in `store`", found.brokers_outside),
        ("WALs of dead brokers in it, which wait for recovery", found.dead_brokers),
    ):
        say(f"{what}: {', '.join(map(str, node_ids)) or 'none'}")
    if found.topics:
        print_table(
            "Records in it that are not rewritten yet",
            ["topic or snapshot", "partitions", "bytes"],
            [(item.topic, item.partition_count, item.size_bytes) for item in found.topics],
        )
    if found.unreferenced_count:
        say(f"slots to be deleted once no reader needs them: {found.unreferenced_count:,}")
