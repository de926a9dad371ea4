"""Run `penstock quorum`: show and change the quorum of controllers, with the terms of
`kafka-metadata-quorum`.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.cli.options import Controllers, DryRun, Output
from penstock.deploy.output import Format, print_document, print_table, report, say

if TYPE_CHECKING:
    from penstock.controller.api.messages import QuorumStatus

app = typer.Typer(help="Show and change the quorum of controllers.", no_args_is_help=True)

Timeout = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait for the change.", min=0.1)
]

_NODE_ID_MAX = 2**31 - 1

_COLUMNS = (
    "NodeId",
    "DirectoryId",
    "Address",
    "LogEndOffset",
    "Lag",
    "LastFetchMs",
    "LastCaughtUpMs",
    "FsyncP99Ms",
    "Status",
)


@app.command("describe")
def describe(
    *,
    status: Annotated[
        bool, typer.Option("--status", help="Show only the leader and the members.")
    ] = False,
    replication: Annotated[
        bool, typer.Option("--replication", help="Show only the lag of each member.")
    ] = False,
    controllers: Controllers,
    output: Output = Format.TABLE,
) -> None:
    """Show the leader, voters and observers, their lag, and the latency of their disks.

    For example: penstock quorum describe --replication
    """
    from penstock.deploy.clients.quorum import describe as describe_quorum
    from penstock.deploy.clients.quorum import replication_rows, status_lines

    quorum: QuorumStatus = describe_quorum(controllers.find())
    if output is not Format.TABLE:
        print_document(output, quorum)
        return
    if status or not replication:
        for name, value in status_lines(quorum):
            say(f"{name + ':':<24}{value}")
    if replication or not status:
        print_table("", _COLUMNS, replication_rows(quorum))


@app.command()
def add(
    which: Annotated[
        str,
        typer.Argument(
            metavar="CONTROLLER",
            help=(
                "Id or HOST:PORT of a controller that was started with"
                " --controller-quorum-join-servers."
            ),
        ),
    ],
    *,
    controllers: Controllers,
    timeout_s: Timeout = 60.0,
    output: Output = Format.TABLE,
) -> None:
    """Make an observer a voter as soon as it has caught up.

    For example: penstock quorum add 4
    """
    from penstock.controller.api.messages import AddVoter
    from penstock.deploy.clients.quorum import change

    change(
        controllers.find(),
        lambda client: client.add_voter(AddVoter(controller=which), timeout_s=timeout_s),
    )
    report(output, {"controller": which}, f"Added controller {which} to the quorum")


@app.command()
def remove(
    node_id: Annotated[
        int,
        typer.Argument(metavar="ID", help="Id of a voter or observer.", min=0, max=_NODE_ID_MAX),
    ],
    *,
    controllers: Controllers,
    timeout_s: Timeout = 30.0,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Remove a controller from the quorum; a leader transfers leadership first. Its process can be
    stopped after that.

    For example: penstock quorum remove 2 --dry-run
    """
    from penstock.controller.api.messages import RemoveController
    from penstock.deploy.clients.quorum import change, describe, removal

    address = controllers.find()
    view = {"node_id": node_id, "dry_run": dry_run}
    if dry_run:
        report(output, view, removal(describe(address), node_id))
        return
    change(
        address,
        lambda client: client.remove_controller(
            RemoveController(node_id=node_id), timeout_s=timeout_s
        ),
    )
    report(output, view, f"Removed controller {node_id} from the quorum")


@app.command()
def transfer(
    node_id: Annotated[
        int,
        typer.Argument(
            metavar="ID",
            help="Id of the new leader.",
            min=-1,
            max=_NODE_ID_MAX,
            show_default="the voter with the longest log",
        ),
    ] = -1,
    *,
    controllers: Controllers,
    timeout_s: Timeout = 30.0,
    output: Output = Format.TABLE,
) -> None:
    """Transfer leadership to another voter.

    For example: penstock quorum transfer 1
    """
    from penstock.controller.api.messages import TransferLeadership
    from penstock.deploy.clients.quorum import change

    change(
        controllers.find(),
        lambda client: client.transfer_leadership(
            TransferLeadership(node_id=node_id), timeout_s=timeout_s
        ),
    )
    to = f" to controller {node_id}" if node_id >= 0 else ""
    view = {"node_id": node_id if to else None}
    report(output, view, f"Leadership was transferred{to}")
