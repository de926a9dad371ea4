"""Run `penstock dev`: a whole cluster on this machine."""

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from penstock.deploy.clients.state_file import VARIABLE
from penstock.deploy.local.plan import ClusterOptions

_STARTED_AT = time.monotonic()


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Options of the cluster; most are fields of `ClusterOptions`."""

    brokers: Annotated[int, typer.Option(help="Number of brokers.")] = 2
    controllers: Annotated[int, typer.Option(help="Number of controllers: 1, 3 or 5.")] = 1
    port: Annotated[
        int,
        typer.Option(
            help="Port of the first broker; the others use the next ones. 0: any free ports."
        ),
    ] = 9092
    store: Annotated[
        str,
        typer.Option(
            help=(
                "Object store: moto | memory | file:DIR | s3://BUCKET?endpoint=URL | gs://BUCKET |"
                " az://ACCOUNT/CONTAINER"
            )
        ),
    ] = "moto"
    wal_store: Annotated[
        str,
        typer.Option(
            help=(
                "Second object store for the WALs: moto (another bucket of it) | file:DIR |"
                " s3://BUCKET?endpoint=URL | gs://BUCKET | az://ACCOUNT/CONTAINER"
            ),
            show_default=False,
        ),
    ] = ""
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; 0.0.0.0 accepts connections from other machines."),
    ] = "127.0.0.1"
    controller_port: Annotated[
        int,
        typer.Option(
            help="Port of the first controller; the others use the next ones. 0: any free ports."
        ),
    ] = 0
    store_port: Annotated[
        int, typer.Option(help="Port of the S3 server (moto). 0: any free port.")
    ] = 0
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help=(
                "Require TLS and SCRAM from clients, ACLs, and TLS between nodes. Generates "
                "certificates, passwords and client properties."
            ),
        ),
    ] = False
    allow_insecure: Annotated[
        bool,
        typer.Option(
            "--allow-insecure",
            help="With --host: allow unauthenticated clients and nodes.",
        ),
    ] = False
    state_file: Annotated[
        Path | None,
        typer.Option(envvar=VARIABLE, help="File for the state of the cluster, as JSON."),
    ] = None
    console: Annotated[
        bool,
        typer.Option(
            "--console/--no-console",
            help="Serve the web console on this machine, if the `console` extra is installed.",
        ),
    ] = True
    console_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the web console; default: 9080, or any free port if it is taken.",
            show_default=False,
        ),
    ] = None
    restart: Annotated[
        bool,
        typer.Option("--restart/--no-restart", help="Restart brokers and controllers that die."),
    ] = True
    auto_balance: Annotated[
        bool,
        typer.Option(
            "--auto-balance",
            help="Balance the brokers' loads, and move partitions away from slow brokers.",
        ),
    ] = False
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of nodes; `penstock config docs` describes them. Repeatable.",
        ),
    ] = None
    config: Annotated[
        str,
        typer.Option(
            "--config",
            envvar="PENSTOCK_CONFIG",
            metavar="FILE",
            help="TOML file with node settings.",
        ),
    ] = ""
    topics: Annotated[
        str,
        typer.Option(
            help="Topics to create at startup, with partition counts, as in orders:3,clicks:12"
        ),
    ] = ""
    seed_from: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Records to produce at startup: one JSON object per line (topic, key,"
                " value, headers, partition), or one plain value per line. Topics that are created"
                " with it keep records of any age."
            )
        ),
    ] = None
    log_level: Annotated[
        str, typer.Option(help="Log level of the nodes: debug | info | warning | error.")
    ] = "warning"


def dev(*, given: _Options) -> None:
    """Run a cluster on this machine: controllers, brokers and an S3 server (moto), each in its own
    process. Ctrl-C stops it.

    With --secure, prints the connection settings for each client as the super user `admin`, without
    secrets; the ready line and the state file contain the file for --command-config.

    Prints one line `ready: bootstrap=... store=...` when clients can connect; `console=` in it is
    the address of the web console, whose process starts with the first request. With --store
    memory, the cluster runs in one process. --topics and --seed-from create topics and records;
    existing topics are not changed. With moto and memory, all data is lost at exit; with file: and
    s3:, the next start continues with it.

    For example: penstock dev --brokers 3 --topics orders:6
    """
    from penstock.deploy.node import logs

    logs.import_structlog()
    from penstock.deploy.local.contents import FirstContents
    from penstock.deploy.local.dev_cluster import run_dev
    from penstock.deploy.local.seed import parse_topics

    names = {field.name for field in fields(ClusterOptions)}
    chosen = {name: value for name, value in vars(given).items() if name in names}
    chosen["settings"] = tuple(given.settings or ())
    contents = FirstContents(parse_topics(given.topics), given.seed_from)
    run_dev(ClusterOptions(**chosen), given.state_file, _STARTED_AT, contents)
