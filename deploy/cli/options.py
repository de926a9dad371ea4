"""Define the options that several commands share."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.deploy.cli.completing import complete_groups, complete_topics
from penstock.deploy.output import Format

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        help="Addresses of brokers, as HOST:PORT,HOST:PORT.",
        show_default="those of the profile, else of `penstock dev`",
    ),
]
BOOTSTRAP = ""
"""Default of --bootstrap: `deploy.clients.target` finds the brokers."""
Controller = Annotated[
    str | None,
    typer.Option(
        envvar="PENSTOCK_CONTROLLER",
        help="Addresses of controllers, as HOST:PORT,HOST:PORT.",
        show_default=False,
    ),
]
StateFile = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_STATE_FILE",
        help="State file of `penstock dev`, with the address of the controller.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Controllers:
    """Options for the controllers of a cluster."""

    controller: Controller = None
    state_file: StateFile = None

    def find(self) -> str:
        """Return their addresses. Raises NoController."""
        from penstock.deploy.clients.metadata import find_controller

        return find_controller(self.controller, self.state_file, os.environ)


Output = Annotated[
    Format,
    typer.Option(
        "--output",
        "-o",
        help="Output format. `--json` and `--csv` are short forms.",
    ),
]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="PENSTOCK_STORE",
        help="Store of the brokers; default: that of the running `penstock dev`.",
    ),
]
WalStore = Annotated[
    str,
    typer.Option(
        "--wal-store",
        envvar="PENSTOCK_WAL_STORE",
        help=(
            "WAL store of the cluster (`wal.store`), if it has one; default: that of the running"
            " `penstock dev`."
        ),
        show_default=False,
    ),
]
ClusterId = Annotated[
    str,
    typer.Option("--cluster-id", help="Cluster id; needed if the store holds several clusters."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; required without a terminal.")]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topics)
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=complete_groups)
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable."),
]
Rate = Annotated[
    float, typer.Option("--rate", min=0.0, help="Maximum records per second; 0: unlimited.")
]
OnError = Annotated[
    Literal["raise", "skip"],
    typer.Option(help="How to handle unreadable records: fail, or skip them with a warning."),
]
