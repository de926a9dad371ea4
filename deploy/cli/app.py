"""List all commands. A module of `deploy.cli` is imported when its command is called; its functions
import what they need.
"""

import os
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from penstock.base.version import VERSION
from penstock.deploy.cli.completing import complete_profiles
from penstock.deploy.cli.lazy import LazyCommands

_WITHOUT_PROFILE = frozenset({"dev", "demo", "profile", "completion"})
_WITHOUT_WAIT = frozenset({"dev", "console", "top", "doctor", "broker", "controller", "completion"})
"""Commands that do not wait for brokers that restart: they run nodes, or show their state."""


class _Commands(LazyCommands):
    """A command is one line: its name, and the function or `typer.Typer` that runs it."""

    table: ClassVar = {
        "dev": "penstock.deploy.cli.dev:dev",
        "demo": "penstock.deploy.cli.demo:demo",
        "snippets": "penstock.deploy.cli.snippets:snippets",
        "profile": "penstock.deploy.cli.profile:app",
        "topics": "penstock.deploy.cli.topics:app",
        "snapshots": "penstock.deploy.cli.snapshots:app",
        "produce": "penstock.deploy.cli.produce:produce",
        "consume": "penstock.deploy.cli.consume:consume",
        "sql": "penstock.deploy.cli.sql:sql",
        "groups": "penstock.deploy.cli.groups:app",
        "streams": "penstock.deploy.cli.streams:app",
        "top": "penstock.deploy.cli.top:top",
        "mirror": "penstock.deploy.cli.mirror:app",
        "console": "penstock.deploy.cli.console:console",
        "doctor": "penstock.deploy.cli.doctor:doctor",
        "nodes": "penstock.deploy.cli.nodes:app",
        "log-dirs": "penstock.deploy.cli.log_dirs:app",
        "reassign": "penstock.deploy.cli.reassign:app",
        "transactions": "penstock.deploy.cli.transactions:app",
        "features": "penstock.deploy.cli.features:app",
        "acls": "penstock.deploy.cli.acls:app",
        "users": "penstock.deploy.cli.users:app",
        "tokens": "penstock.deploy.cli.tokens:app",
        "quotas": "penstock.deploy.cli.quotas:app",
        "certs": "penstock.deploy.cli.certs:app",
        "elect": "penstock.deploy.cli.elect:elect",
        "balance": "penstock.deploy.cli.balance:balance",
        "quorum": "penstock.deploy.cli.quorum:app",
        "controller": "penstock.deploy.cli.controller:app",
        "compact": "penstock.deploy.cli.compact:compact",
        "table": "penstock.deploy.cli.table:app",
        "wal": "penstock.deploy.cli.wal:app",
        "configs": "penstock.deploy.cli.configs:app",
        "config": "penstock.deploy.cli.config:app",
        "completion": "penstock.deploy.cli.completion:completion",
    }


app = typer.Typer(
    name="penstock",
    cls=_Commands,
    help="Kafka-compatible streaming on object storage, with stateless brokers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"penstock {VERSION}")
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
            help=(
                "File of client properties, such as security.protocol and sasl.username, for "
                "commands that connect to brokers."
            ),
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
        from penstock.deploy.clients import profiles

        profiles.use(profile, os.environ)
    if context.invoked_subcommand not in _WITHOUT_WAIT:
        from penstock.deploy.clients.restarts import wait_for_restarts

        wait_for_restarts()
    if command_config is not None:
        from penstock.deploy.clients.security import use_file

        use_file(command_config)


@app.command("broker", add_help_option=False)
def broker() -> None:
    """Run one broker. `penstock broker --help` lists its settings: flags, variables, TOML file."""
