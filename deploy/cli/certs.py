"""Generate certificates for development: `penstock certs`."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.deploy.cli.options import Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report

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
    output: Output = Format.TABLE,
) -> None:
    """Create a CA, a keystore for brokers and one for each client, all as PEM files.

    ca.pem is the truststore; broker.pem and NAME.pem contain a key and its certificate. Do not use
    them in production.

    For example: penstock certs dev certificates --host kafka.example.com
    """
    from penstock.deploy.local.certificates import Authority
    from penstock.deploy.private_files import write_private

    clients = clients or ["client"]
    for client in clients:
        if not client.replace("-", "").replace("_", "").isalnum() or client in {"ca", "broker"}:
            raise UsageError(f"--client {client!r} is not allowed: letters, digits, - and _")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be created: {error.strerror}") from None
    if any(directory.glob("*.pem")):
        raise UsageError(f"{directory} already contains PEM files; choose another directory")
    authority = Authority.make("penstock development CA")
    truststore, keystore = directory / "ca.pem", directory / "broker.pem"
    truststore.write_bytes(authority.pem)
    hosts = hosts or ["localhost", "127.0.0.1", "::1"]
    write_private(keystore, authority.issue("broker", hosts=hosts).keystore)
    for client in clients:
        write_private(directory / f"{client}.pem", authority.issue(client).keystore)
    report(
        output,
        {
            "truststore": str(truststore),
            "broker_keystore": str(keystore),
            "client_keystores": [str(directory / f"{client}.pem") for client in clients],
        },
        f"brokers:  ssl.keystore.location={keystore}",
        f"          ssl.truststore.location={truststore}",
        f"clients:  ssl.ca.location={truststore}",
    )
