"""Run `penstock controller recover`. Without a subcommand, `penstock controller` runs a node
(`deploy.node.process`).
"""

import typer

from penstock.deploy.cli import controller_recover

app = typer.Typer(
    help="Run a controller, or recover a cluster that lost all controllers.", no_args_is_help=True
)


@app.callback()
def controller() -> None:
    """Make typer treat `recover` as a subcommand although it is the only one."""


app.command("recover")(controller_recover.recover)
