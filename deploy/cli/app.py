"""List all commands. A module of `deploy.cli` is imported when its command is called; its functions
import what takes long to import, such as clients, so that `--help` is fast.
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
"""Commands that do not wait for restarting brokers, because they run nodes or display their
state.
"""


class _Commands(LazyCommands):
    """Commands and their summaries, by panel of `penstock --help`."""

    panels: ClassVar = {
        "Start here": {
            "dev": "Run a cluster on this machine.",
            "demo": "Kill brokers while they write, and compare the records.",
            "snippets": "Print a client program for the running cluster.",
            "console": "Serve the web console.",
            "top": "Show throughput, latency, cost and the busiest topics.",
            "doctor": "Check a deployment, and say what to do.",
        },
        "Records and topics": {
            "produce": "Send lines of standard input or of a file as records.",
            "consume": "Print the records of a topic.",
            "sql": "Query topics with SQL, from the object store.",
            "table": "Export topics to Iceberg or Parquet tables.",
            "topics": "Create, list, alter, fork, delete and undelete topics.",
            "snapshots": "Create, list, delete and restore snapshots of topics.",
            "groups": "List and delete groups; reset their offsets.",
            "mirror": "Copy topics, groups and ACLs of another cluster.",
            "compact": "Rewrite small objects of a topic into large ones.",
        },
        "Operation": {
            "nodes": "Show brokers, their load, and WALs to recover.",
            "reassign": "Move partitions to other brokers.",
            "elect": "Elect preferred leaders.",
            "balance": "Balance the load of brokers.",
            "configs": "Describe and alter dynamic configs.",
            "features": "List, upgrade and downgrade features.",
            "transactions": "List transactions; abort hanging ones.",
            "log-dirs": "Show the size of partitions, by broker.",
            "quorum": "Show and change the quorum of controllers.",
            "controller": "Run a controller, or recover a cluster without any.",
            "streams": "Show how topics are stored: streams, epochs, ranges, objects.",
            "wal": "Inspect and repair the WALs of brokers.",
        },
        "Security": {
            "acls": "List, add and remove ACLs.",
            "users": "Manage users of SCRAM and PLAIN.",
            "tokens": "Manage delegation tokens.",
            "quotas": "List, set and delete quotas.",
            "certs": "Generate certificates for development.",
        },
        "Settings of this command": {
            "profile": "Manage cluster profiles, and select one.",
            "config": "Show settings of nodes; `configs` shows those of topics and brokers.",
            "completion": "Print the shell completion script.",
        },
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


def _show_version(requested: bool) -> None:
    if requested:
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


@app.command("broker", add_help_option=False, rich_help_panel="Operation")
def broker() -> None:
    """Run a broker. Its --help lists all settings."""
