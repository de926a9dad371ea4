"""Create, list and delete users who authenticate with SCRAM or PLAIN: `penstock users`."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.base.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_BY_NAME
from penstock.deploy.cli.confirmation import confirm
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output, Yes
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, remark, report

app = typer.Typer(help="Manage users who authenticate with SCRAM or PLAIN.", no_args_is_help=True)
_VARIABLE = "PENSTOCK_USER_PASSWORD"
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


@app.command("create")
def create(
    name: _Name,
    *,
    mechanism: Annotated[
        Literal["SCRAM-SHA-256", "SCRAM-SHA-512"], typer.Option(help="PLAIN works with both.")
    ] = "SCRAM-SHA-512",
    iterations: Annotated[
        int, typer.Option(min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="Iterations of the hash.")
    ] = ITERATIONS_MIN,
    password_file: Annotated[
        Path | None,
        typer.Option(help="File whose first line is the password.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create a user, or change its password.

    The password is read from --password-file, from the environment variable PENSTOCK_USER_PASSWORD,
    or from a prompt. It is not an option, because other processes can see options.

    For example: penstock users create alice --password-file alice.txt
    """
    from penstock.deploy.clients.users import create_user
    from penstock.deploy.clients.wire import WireClient

    secret = _password(password_file)
    with WireClient(bootstrap) as client:
        create_user(client, name, secret, SCRAM_BY_NAME[mechanism], iterations)
    view = {"name": name, "mechanism": mechanism, "iterations": iterations}
    report(output, view, f"user {name!r} can authenticate by {mechanism}")


@app.command("list")
def list_(bootstrap: Bootstrap = BOOTSTRAP, output: Output = Format.TABLE) -> None:
    """List the users in the metadata. Users in `sasl.users.file` are not listed.

    For example: penstock users list --output json
    """
    from penstock.deploy.clients.users import list_users
    from penstock.deploy.clients.wire import WireClient

    with WireClient(bootstrap) as client:
        users = list_users(client)
    if not users:
        remark("no users yet; `penstock users create NAME` adds one")
    views = [{"name": user.name, "mechanisms": user.mechanisms} for user in users]
    sentences = [
        f"{user.name}: "
        + ", ".join(f"{name} ({count} iterations)" for name, count in user.mechanisms.items())
        for user in users
    ]
    report(output, views, *sentences)


@app.command("delete")
def delete(
    name: _Name,
    *,
    mechanism: Annotated[
        str | None, typer.Option(help="Only this mechanism.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete a user. Open connections remain until they must authenticate again
    (connections.max.reauth.ms).

    For example: penstock users delete alice --dry-run
    """
    from penstock.deploy.clients.users import delete_credential, list_users
    from penstock.deploy.clients.wire import WireClient

    with WireClient(bootstrap) as client:
        found = [user for user in list_users(client, name) if user.name == name]
        mechanisms = [
            each for user in found for each in user.mechanisms if mechanism in {None, each}
        ]
        if not mechanisms:
            raise UsageError(f"user {name!r} does not exist; see `penstock users list`")
        view = {"name": name, "mechanisms": mechanisms, "dry_run": dry_run}
        shown = f"{name!r} ({', '.join(mechanisms)})"
        if dry_run:
            report(output, view, f"would delete {shown}")
            return
        confirm(f"delete {shown}?", yes=yes)
        for each in mechanisms:
            delete_credential(client, name, SCRAM_BY_NAME[each])
    report(output, view, f"deleted {shown}")


def _password(file: Path | None) -> str:
    given = os.environ.get(_VARIABLE)
    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--password-file {file}: {error}") from None
        given = lines[0] if lines else ""
    if given is None:
        given = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if not given:
        raise UsageError("the password is empty")
    return given
