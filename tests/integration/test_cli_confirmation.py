"""Destructive commands ask for confirmation on a terminal; without one they require --yes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.broker.security.config import SecurityConfig
from penstock.deploy.cli.app import app
from penstock.deploy.errors import UsageError
from tests.support.cli import Cli
from tests.support.clients import create_topic, produce
from tests.support.cluster import Cluster
from tests.support.terminal import on_a_terminal

COMMANDS = {
    "topics delete": ("orders",),
    "topics delete-records": ("orders", "--all"),
    "groups delete": ("billing",),
    "groups delete-offsets": ("billing", "--topic", "orders"),
    "groups reset-offsets": ("billing", "--topic", "orders", "--to-latest", "--execute"),
    "snapshots delete": ("nightly",),
    "snapshots restore": ("nightly", "--replace"),
    "users delete": ("alice",),
    "acls remove": ("--topic", "orders"),
    "nodes unregister": ("0",),
}
ELSEWHERE = {"doctor", "tokens expire"}
"""Commands that need a different cluster and are tested in other files."""
SHOWN = ("topics describe orders", "groups describe", "snapshots list", "users list", "acls list")

pytestmark = pytest.mark.cluster(
    security=SecurityConfig(authorizer=STANDARD_AUTHORIZER, allow_everyone_if_no_acl_found=True)
)


@pytest.fixture
async def cli(cluster: Cluster, tmp_path: Path) -> Cli:
    """Return a CLI for a cluster with a deletable item of each kind."""
    await asyncio.to_thread(create_topic, cluster.bootstrap, "orders", 1)
    await asyncio.to_thread(produce, cluster.bootstrap, "orders", [b"one", b"two"])
    cli = Cli(cluster, tmp_path)
    reset = ("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest")
    await cli.run(*reset, "--execute", "--yes")
    await cli.run("snapshots", "create", "nightly")
    await cli.run("users", "create", "alice", "--password-file", cli.file("password", "secret"))
    allowed = ("--principal", "User:*", "--operation", "all")
    await cli.run("acls", "add", "--topic", "orders", *allowed)
    return cli


def confirming() -> set[str]:
    """Return the commands that accept --yes."""

    def of(command: Any, name: str) -> Iterator[str]:
        if any("--yes" in parameter.opts for parameter in command.params):
            yield name
        context = typer.Context(command)
        for child in command.list_commands(context) if hasattr(command, "list_commands") else ():
            yield from of(command.get_command(context, child), f"{name} {child}".strip())

    return set(of(typer.main.get_command(app), ""))


def test_every_command_with_confirmation_is_tested() -> None:
    assert confirming() == COMMANDS.keys() | ELSEWHERE


async def test_destructive_commands_require_yes_without_a_terminal(cli: Cli) -> None:
    before = [await cli.run(*command.split()) for command in SHOWN]
    for command, arguments in COMMANDS.items():
        for form in ((), ("--json",)):
            if form and command in {"users delete", "nodes unregister"}:
                continue
            with pytest.raises(UsageError, match=r"\? Confirm with --yes: there is no terminal"):
                await cli.run(*command.split(), *arguments, *form, given=b"y\n")
    assert [await cli.run(*command.split()) for command in SHOWN] == before


async def test_confirmation_on_a_terminal_decides_whether_records_are_deleted(cli: Cli) -> None:
    command = ("topics", "delete-records", "orders", "--all")
    for word, is_done in (("n", False), ("y", True)):
        shown = await asyncio.to_thread(
            on_a_terminal,
            cli.bootstrap,
            *command,
            steps=(("delete up to 2 records of orders? [y/N]", f"{word}\n".encode()),),
        )
        assert ("Aborted" in shown) is not is_done, shown
        left = await cli.run("consume", "orders", "--from-beginning", "--until-end")
        assert left == ("" if is_done else "one\ntwo\n")
