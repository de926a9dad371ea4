"""Define the options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Bootstrap = Annotated[
    str,
    typer.Option(envvar="PENSTOCK_BOOTSTRAP", help="Addresses of brokers, as HOST:PORT,HOST:PORT."),
]
BOOTSTRAP = "127.0.0.1:9092"
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
        help="State file of `penstock dev`, which names the controller.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
