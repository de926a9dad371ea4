"""Collect all subcommands. Each module of `deploy.cli` is cheap to import; its functions import
what they need.
"""

import inspect
import re
from importlib.metadata import version
from typing import Annotated

import typer

from deploy.cli import (
    acls,
    balance,
    compact,
    config,
    configs,
    consume,
    controller,
    demo,
    dev,
    doctor,
    elect,
    features,
    nodes,
    produce,
    reassign,
    snapshots,
    snippets,
    streams,
    table,
    top,
    topics,
    transactions,
    wal,
)

app = typer.Typer(
    name="penstock",
    help="Kafka-protocol streaming on object storage: stateless brokers, every byte in S3.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help=("Print the version and exit.")
        ),
    ] = False,
) -> None:
    """Run Penstock clusters and work with their topics."""


app.command("dev")(dev.dev)
app.command("demo")(demo.demo)
app.command("snippets")(snippets.snippets)
app.add_typer(topics.app, name="topics")
app.add_typer(snapshots.app, name="snapshots")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(streams.app, name="streams")
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.add_typer(nodes.app, name="nodes")
app.add_typer(reassign.app, name="reassign")
app.add_typer(transactions.app, name="transactions")
app.add_typer(features.app, name="features")
app.add_typer(acls.app, name="acls")
app.command("elect")(elect.elect)
app.command("balance")(balance.balance)
app.add_typer(controller.app, name="controller")
app.command("compact")(compact.compact)
app.add_typer(table.app, name="table")
app.add_typer(wal.app, name="wal")
app.add_typer(configs.app, name="configs")
app.add_typer(config.app, name="config")


@app.command("broker", add_help_option=False)
def broker() -> None:
    """Run one broker. `penstock broker --help` lists its settings: flags, variables, TOML file."""


def _unwrap_help(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the help: Typer keeps the line breaks of docstrings."""
    for command in commands.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


_unwrap_help(app)
