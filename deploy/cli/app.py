"""Collect all subcommands. Each module of `deploy.cli` is cheap to import; its functions import
what they need.
"""

import inspect
import re
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from deploy.cli import (
    acls,
    balance,
    certs,
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
    quotas,
    reassign,
    snapshots,
    snippets,
    streams,
    table,
    top,
    topics,
    transactions,
    users,
    wal,
)

_COMMAND_CONFIG = "--command-config"


class _Commands(TyperGroup):
    """The commands, which take --command-config at any place, as Kafka's tools do."""

    def parse_args(self, ctx: object, args: list[str]) -> list[str]:
        return super().parse_args(cast("typer.Context", ctx), _moved_to_front(args))


def _moved_to_front(arguments: list[str]) -> list[str]:
    """Move --command-config and its value before the command."""
    front: list[str] = []
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        if item == "--":
            return [*front, *rest, item, *items]
        if item == _COMMAND_CONFIG:
            front += [item, *islice(items, 1)]
        elif item.startswith(_COMMAND_CONFIG + "="):
            front.append(item)
        else:
            rest.append(item)
    return [*front, *rest]


app = typer.Typer(
    name="penstock",
    cls=_Commands,
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
    command_config: Annotated[
        Path | None,
        typer.Option(
            _COMMAND_CONFIG,
            envvar="PENSTOCK_COMMAND_CONFIG",
            help="File of client properties, such as security.protocol and sasl.username, for"
            " commands that talk to brokers.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run Penstock clusters and work with their topics."""
    if command_config is not None:
        from deploy.clients.security import use_file

        use_file(command_config)


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
app.add_typer(users.app, name="users")
app.add_typer(quotas.app, name="quotas")
app.add_typer(certs.app, name="certs")
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
