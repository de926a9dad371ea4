"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Bootstrap = Annotated[
    str, typer.Option(envvar="PENSTOCK_BOOTSTRAP", help="host:port of any brokers.")
]
BOOTSTRAP = "127.0.0.1:9092"
Controller = Annotated[
    str | None,
    typer.Option(
        envvar="PENSTOCK_CONTROLLER", help="host:port of any controllers.", show_default=False
    ),
]
StateFile = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_STATE_FILE",
        help="State file of `penstock dev`, to find the controller in.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
