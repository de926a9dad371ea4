"""`penstock controller`: the node itself is started by `deploy.node`; here are the commands about controllers."""

import typer

from deploy.commands import controller_recover

app = typer.Typer(
    name="controller",
    help="Run one controller (its settings: `penstock controller --help`), or repair what controllers keep.",
    no_args_is_help=True,
)
app.command("recover")(controller_recover.recover)
