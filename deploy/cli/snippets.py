"""Run `penstock snippets`: print an example program for each client."""

import os
from typing import Annotated

import typer

from deploy.cli.options import StateFile
from deploy.errors import UsageError


def snippets(
    client: Annotated[
        str | None,
        typer.Argument(
            help=(
                "confluent-kafka | kafka-python | aiokafka | kcat | java | spark; default:"
                " list them."
            )
        ),
    ] = None,
    *,
    topic: Annotated[str, typer.Option(help="Topic that the program uses.")] = "orders",
    bootstrap: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_BOOTSTRAP",
            help=(
                "Addresses of brokers, as HOST:PORT,HOST:PORT; default: those of the running"
                " `penstock dev`."
            ),
        ),
    ] = None,
    state_file: StateFile = None,
) -> None:
    """Print a program that produces and consumes one record, with the addresses of the running
    cluster.
    """
    from deploy.cli.options import BOOTSTRAP
    from deploy.clients import state_file as state_file_module
    from deploy.local.client_snippets import SNIPPETS, filled, lines

    if client is not None and client not in SNIPPETS:
        raise UsageError(f"client {client!r} is not supported: {', '.join(SNIPPETS)}")
    state = state_file_module.read(state_file or state_file_module.default_path(os.environ))
    store = state.store_url if state else "s3://BUCKET"
    address = bootstrap or (state.bootstrap if state else BOOTSTRAP)
    if client is None:
        print("\n".join(lines(bootstrap=address, topic=topic, store=store)))
    else:
        print(filled(SNIPPETS[client].program, bootstrap=address, topic=topic, store=store), end="")
