"""List all commands. A module of `deploy.cli` is imported when its command is called; its functions
import what they need.
"""

import os
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from deploy.cli.completing import complete_profiles
from deploy.cli.lazy import LazyCommands

_WITHOUT_PROFILE = frozenset({"dev", "demo", "profile", "completion"})


class _Commands(LazyCommands):
    """A command is one line: its name, and the function or `typer.Typer` that runs it."""

    table: ClassVar = {
        "dev": "deploy.cli.dev:dev",
        "demo": "deploy.cli.demo:demo",
        "snippets": "deploy.cli.snippets:snippets",
        "profile": "deploy.cli.profile:app",
        "topics": "deploy.cli.topics:app",
        "snapshots": "deploy.cli.snapshots:app",
        "produce": "deploy.cli.produce:produce",
        "consume": "deploy.cli.consume:consume",
        "sql": "deploy.cli.sql:sql",
        "groups": "deploy.cli.groups:app",
        "streams": "deploy.cli.streams:app",
        "top": "deploy.cli.top:top",
        "mirror": "deploy.cli.mirror:app",
        "console": "deploy.cli.console:console",
        "doctor": "deploy.cli.doctor:doctor",
        "nodes": "deploy.cli.nodes:app",
        "log-dirs": "deploy.cli.log_dirs:app",
        "reassign": "deploy.cli.reassign:app",
        "transactions": "deploy.cli.transactions:app",
        "features": "deploy.cli.features:app",
        "acls": "deploy.cli.acls:app",
        "users": "deploy.cli.users:app",
        "tokens": "deploy.cli.tokens:app",
        "quotas": "deploy.cli.quotas:app",
        "certs": "deploy.cli.certs:app",
        "elect": "deploy.cli.elect:elect",
        "balance": "deploy.cli.balance:balance",
        "quorum": "deploy.cli.quorum:app",
        "controller": "deploy.cli.controller:app",
        "compact": "deploy.cli.compact:compact",
        "table": "deploy.cli.table:app",
        "wal": "deploy.cli.wal:app",
        "configs": "deploy.cli.configs:app",
        "config": "deploy.cli.config:app",
        "completion": "deploy.cli.completion:completion",
    }


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
        from importlib.metadata import version

        print(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help=("Print the version and exit.")
        ),
    ] = False,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            envvar="PENSTOCK_COMMAND_CONFIG",
            help="File of client properties, such as security.protocol and sasl.username, for"
            " commands that talk to brokers.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            envvar="PENSTOCK_PROFILE",
            help="Profile of the cluster; see `penstock profile`.",
            show_default="the active one",
            autocompletion=complete_profiles,
        ),
    ] = "",
) -> None:
    """Run Penstock clusters and work with their topics."""
    if context.invoked_subcommand not in _WITHOUT_PROFILE:
        from deploy.clients import profiles

        profiles.use(profile, os.environ)
    if command_config is not None:
        from deploy.clients.security import use_file

        use_file(command_config)


@app.command("broker", add_help_option=False)
def broker() -> None:
    """Run one broker. `penstock broker --help` lists its settings: flags, variables, TOML file."""
