"""`penstock dev`: a whole cluster on this machine."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from deploy.clients.state_file import VARIABLE, default_path
from deploy.local.plan import ClusterOptions

_STARTED_AT = time.monotonic()


def dev(
    *,
    brokers: Annotated[int, typer.Option(help="How many brokers.")] = 2,
    controllers: Annotated[int, typer.Option(help="How many controllers: 1, 3 or 5.")] = 1,
    port: Annotated[
        int, typer.Option(help="Port of the first broker, the others follow; 0: any free ones.")
    ] = 9092,
    store: Annotated[
        str, typer.Option(help="moto | memory | file:DIR | s3://BUCKET?endpoint=URL")
    ] = "moto",
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    controller_port: Annotated[
        int, typer.Option(help="Port of the first controller, the others follow; 0: any free ones.")
    ] = 0,
    store_port: Annotated[
        int, typer.Option(help="Port of the S3 server (moto); 0: any free one.")
    ] = 0,
    state_file: Annotated[
        Path | None, typer.Option(envvar=VARIABLE, help="Where to write what runs where, as JSON.")
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart/--no-restart", help="Start a broker or controller that died again."
        ),
    ] = True,
    auto_balance: Annotated[
        bool,
        typer.Option(
            "--auto-balance", help="Keep the brokers' loads equal and relieve slow brokers."
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the nodes, as in docs/reference/configuration.md.",
        ),
    ] = None,
    config: Annotated[
        str,
        typer.Option(
            "--config", envvar="PENSTOCK_CONFIG", metavar="FILE", help="TOML file for the nodes."
        ),
    ] = "",
    topics: Annotated[
        str,
        typer.Option(
            help="Topics to create at the start, with partitions, as in orders:3,clicks:12"
        ),
    ] = "",
    seed_from: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Records for them: a JSON object a line (topic, key, value, headers, partition), or"
                " a plain value."
            )
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="debug | info | warning | error, of brokers and controller.")
    ] = "warning",
) -> None:
    """Run a cluster on this machine: controllers, brokers and an S3 server (moto), each a process
    of its own. Ctrl-C stops it all.

    Prints one line `ready: bootstrap=... store=...` when clients may come. With --store memory all
    runs in one process. --topics and --seed-from fill it; topics that exist already are left alone.
    With moto and memory everything is gone at the end; with file: and s3: the next start goes on
    where this one stopped.
    """
    from deploy.local.contents import FirstContents
    from deploy.local.dev_cluster import run_dev
    from deploy.local.seed import parse_topics

    contents = FirstContents(parse_topics(topics), seed_from)
    options = ClusterOptions(
        brokers=brokers,
        controllers=controllers,
        host=host,
        port=port,
        controller_port=controller_port,
        store_port=store_port,
        store=store,
        restart=restart,
        auto_balance=auto_balance,
        log_level=log_level,
        settings=tuple(settings or ()),
        config=config,
    )
    run_dev(options, state_file or default_path(os.environ), _STARTED_AT, contents)
