"""Run `penstock balance`: balance the load of brokers by measured traffic."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.cli.completing import complete_topics
from penstock.deploy.cli.incomplete import exit_if_failed
from penstock.deploy.cli.options import Controllers, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, counted, print_table, report_with, say

if TYPE_CHECKING:
    from penstock.controller.api.load_messages import MovesProposed

MOVES_MAX = 2_000


def balance(
    *,
    execute: Annotated[
        bool, typer.Option("--execute", help="Execute the moves instead of only printing them.")
    ] = False,
    max_moves: Annotated[
        int, typer.Option(help="Maximum number of moves, most effective first.")
    ] = 100,
    topics: Annotated[
        str,
        typer.Option(
            help="Move only partitions of these topics, such as a,b; default: all topics.",
            autocompletion=complete_topics,
        ),
    ] = "",
    controllers: Controllers,
    output: Output = Format.TABLE,
) -> None:
    """Propose moves that balance the measured bytes and leaders of brokers, and show the loads
    before and after. With --execute, start them.

    Goals, in this order: network in, network out, number of leaders. Brokers report their loads
    every 2 s.

    For example: penstock balance --execute
    """
    from penstock.deploy.admin.balance import begin_moves, propose_moves

    if not 1 <= max_moves <= MOVES_MAX:
        raise UsageError(f"--max-moves {max_moves} is not allowed: 1 to {MOVES_MAX}")
    address = controllers.find()
    names = [name.strip() for name in topics.split(",") if name.strip()]
    found = propose_moves(address, topics=names, moves_max=max_moves)
    problems = begin_moves(address, found.moves) if execute and found.moves else []
    document = {"executed": execute, "problems": list(filter(None, problems)), "proposal": found}
    report_with(output, document, lambda: _print_proposal(found, problems, executed=execute))
    failed = {
        f"{move.topic}-{move.partition}": text
        for move, text in zip(found.moves, problems, strict=False)
        if text
    }
    exit_if_failed("these moves were not started", failed)


def _print_proposal(found: "MovesProposed", problems: Sequence[str], *, executed: bool) -> None:
    def change(was: float, will_be: float, unit: float) -> str:
        return (
            f"{was / unit:,.2f} > {will_be / unit:,.2f}" if was != will_be else f"{was / unit:,.2f}"
        )

    rows = [
        (
            b.node_id,
            change(b.load.bytes_in, a.load.bytes_in, 1e6),
            change(b.load.bytes_out, a.load.bytes_out, 1e6),
            f"{b.leaders} > {a.leaders}" if b.leaders != a.leaders else f"{b.leaders}",
            change(b.load.requests, a.load.requests, 1),
            b.note or "-",
        )
        for b, a in zip(found.before, found.after, strict=True)
    ]
    print_table(
        "brokers, before > after",
        ["broker", "in MB/s", "out MB/s", "leads", "requests/s", "excluded because it"],
        rows,
    )
    if not found.moves:
        say("The loads are balanced; no move is needed.")
        return
    print_table(
        "moves",
        ["partition", "from", "to", "in kB/s", "out kB/s", "why"],
        [
            (
                f"{p.topic}-{p.partition}",
                p.source,
                p.target,
                p.load.bytes_in / 1e3,
                p.load.bytes_out / 1e3,
                p.reason,
            )
            for p in found.moves
        ],
    )
    if executed:
        say(
            f"Started {problems.count('')} of {counted(len(found.moves), 'move')};"
            " `penstock nodes` shows their progress."
        )
    else:
        say("Nothing was changed; --execute starts these moves.")
