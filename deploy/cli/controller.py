"""Run `penstock controller status|add|remove|transfer|recover`, with the terms of
`kafka-metadata-quorum`.

Without a subcommand, `penstock controller` runs a node (`deploy.node.process`).
"""

import os
from typing import Annotated

import typer

from deploy.cli import controller_recover
from deploy.cli.options import AsJson, Controller, StateFile

app = typer.Typer(help="Run a controller; show and change the quorum.", no_args_is_help=True)

Timeout = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait for the change.", min=0.1)
]


@app.command()
def status(
    *, controller: Controller = None, state_file: StateFile = None, as_json: AsJson = False
) -> None:
    """Show the leader, voters and observers, their lag, and the latency of their disks."""
    from deploy.clients.metadata import find_controller
    from deploy.clients.quorum import describe, replication_rows, status_lines
    from deploy.output import print_json, print_table

    quorum = describe(find_controller(controller, state_file, os.environ))
    if as_json:
        print_json(quorum)
        return
    for name, value in status_lines(quorum):
        print(f"{name + ':':<24}{value}")
    columns = [
        "NodeId",
        "DirectoryId",
        "Address",
        "LogEndOffset",
        "Lag",
        "LastFetchMs",
        "LastCaughtUpMs",
        "FsyncP99Ms",
        "Status",
    ]
    print_table("", columns, replication_rows(quorum))


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
    controller: Controller = None,
    state_file: StateFile = None,
    timeout_s: Timeout = 60.0,
) -> None:
    """Let an observer vote as soon as it has caught up."""
    from controller.api.messages import AddVoter
    from deploy.clients.metadata import find_controller
    from deploy.clients.quorum import change

    address = find_controller(controller, state_file, os.environ)
    change(
        address, lambda client: client.add_voter(AddVoter(controller=which), timeout_s=timeout_s)
    )
    print(f"Added controller {which} to the quorum")


@app.command()
def remove(
    node_id: Annotated[int, typer.Argument(metavar="ID", help="Id of a voter or observer.", min=0)],
    *,
    controller: Controller = None,
    state_file: StateFile = None,
    timeout_s: Timeout = 30.0,
) -> None:
    """Remove a controller from the quorum; a leader hands over first. Its process may be stopped
    afterwards.
    """
    from controller.api.messages import RemoveController
    from deploy.clients.metadata import find_controller
    from deploy.clients.quorum import change

    address = find_controller(controller, state_file, os.environ)
    change(
        address,
        lambda client: client.remove_controller(
            RemoveController(node_id=node_id), timeout_s=timeout_s
        ),
    )
    print(f"Removed controller {node_id} from the quorum")


@app.command()
def transfer(
    node_id: Annotated[
        int,
        typer.Argument(
            metavar="[ID]", help=("Id of the new leader; default: the voter with the longest log.")
        ),
    ] = -1,
    *,
    controller: Controller = None,
    state_file: StateFile = None,
    timeout_s: Timeout = 30.0,
) -> None:
    """Transfer leadership to another voter."""
    from controller.api.messages import TransferLeadership
    from deploy.clients.metadata import find_controller
    from deploy.clients.quorum import change

    address = find_controller(controller, state_file, os.environ)
    change(
        address,
        lambda client: client.transfer_leadership(
            TransferLeadership(node_id=node_id), timeout_s=timeout_s
        ),
    )
    print("Leadership was transferred" + (f" to controller {node_id}" if node_id >= 0 else ""))


app.command("recover")(controller_recover.recover)
