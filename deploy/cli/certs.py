"""Generate certificates for development: `penstock certs`."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.deploy.errors import UsageError
from penstock.deploy.output import say

app = typer.Typer(help="Generate certificates for development.", no_args_is_help=True)


@app.command("dev")
def dev(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Directory for the files; it must not contain PEM files."
        ),
    ],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="Host name or address of the brokers. Repeatable."),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", help="Name of a client. Repeatable."),
    ] = None,
) -> None:
    """Create a CA, a keystore for brokers and one for each client, all as PEM files.

    ca.pem is the truststore; broker.pem and NAME.pem contain a key and its certificate. Do not use
    them in production.

    For example: penstock certs dev certificates --host kafka.example.com
    """
    from penstock.deploy.local.certificates import Authority, write_private

    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.glob("*.pem")):
        raise UsageError(f"{directory} already contains PEM files; choose another directory")
    authority = Authority.make("penstock development CA")
    (directory / "ca.pem").write_bytes(authority.pem)
    names = hosts or ["localhost", "127.0.0.1", "::1"]
    write_private(directory / "broker.pem", authority.issue("broker", hosts=names).keystore)
    for client in clients or ["client"]:
        if not client.replace("-", "").replace("_", "").isalnum() or client in {"ca", "broker"}:
            raise UsageError(f"--client {client!r} is not allowed: letters, digits, - and _")
        write_private(directory / f"{client}.pem", authority.issue(client).keystore)
    say(f"brokers:  ssl.keystore.location={directory / 'broker.pem'}")
    say(f"          ssl.truststore.location={directory / 'ca.pem'}")
    say(f"clients:  ssl.ca.location={directory / 'ca.pem'}")
