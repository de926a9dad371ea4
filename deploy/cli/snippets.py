"""Run `penstock snippets`: print an example program for each client."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.deploy.cli.completing import complete_topics
from penstock.deploy.cli.options import StateFile
from penstock.deploy.errors import UsageError
from penstock.deploy.output import say

_EXAMPLE: Final = "127.0.0.1:9092"
"""Address used in programs if no cluster is running."""


def snippets(
    client: Annotated[
        str | None,
        typer.Argument(
            metavar="CLIENT",
            help=(
                "confluent-kafka | kafka-python | aiokafka | kcat | java | spark; default:"
                " list them."
            ),
        ),
    ] = None,
    *,
    topic: Annotated[
        str, typer.Option(help="Topic that the program uses.", autocompletion=complete_topics)
    ] = "orders",
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "--bootstrap-server",
            "-b",
            envvar="PENSTOCK_BOOTSTRAP",
            help=(
                "Addresses of brokers, as HOST:PORT,HOST:PORT; default: those of the running"
                " `penstock dev`."
            ),
        ),
    ] = None,
    state_file: StateFile = None,
) -> None:
    """Print a program that produces and consumes one record, with the addresses and security
    settings of the running cluster or of --command-config.

    For example: penstock snippets kcat --topic orders
    """
    from penstock.deploy.clients.profiles import current_profile
    from penstock.deploy.clients.security import PLAINTEXT, current_security, read_file
    from penstock.deploy.clients.target import dev_cluster
    from penstock.deploy.local.client_snippets import SNIPPETS, filled, is_readable, lines

    client = None if client is None else client.lower()
    if client is not None and client not in SNIPPETS:
        raise UsageError(f"client {client!r} is not supported: {', '.join(SNIPPETS)}")
    state = dev_cluster(state_file)
    used = current_profile().profile
    store = used.store or (state.store_url if state else "s3://BUCKET")
    address = bootstrap or used.bootstrap or (state.bootstrap if state else _EXAMPLE)
    security = current_security()
    is_dev = bootstrap is None and not used.bootstrap
    if security == PLAINTEXT and is_dev and state and state.command_config:
        security = read_file(Path(state.command_config))
    if client is None:
        say(*lines(bootstrap=address, topic=topic, store=store, security=security))
        return
    if client == "spark" and not is_readable(store):
        raise UsageError(
            "Spark cannot read the store of this cluster, which is in the memory of its process:"
            " stop it, and run `penstock dev` without --store memory"
        )
    snippet = SNIPPETS[client]
    _check_file(client, snippet.package)
    say(
        *filled(
            snippet.program, bootstrap=address, topic=topic, store=store, security=security
        ).splitlines()
    )


def _check_file(client: str, package: str) -> None:
    """Raise UsageError if the output file has the name of the package that the program imports,
    which it would hide.
    """
    file = Path(f"{package}.py")
    try:
        hides = os.path.samestat(os.fstat(sys.stdout.fileno()), file.stat())
    except OSError:  # the file does not exist or the output has no file descriptor
        return
    if hides:
        raise UsageError(
            f"{file} would hide the package {package!r} from its program: remove it, and use"
            f" another name: penstock snippets {client} > example.py"
        )
