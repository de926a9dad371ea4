"""Run `penstock dev`: a whole cluster on this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.deploy.clients.state_file import VARIABLE
from penstock.deploy.local.plan import ClusterOptions

_STARTED_AT = time.monotonic()


Brokers = Annotated[int, typer.Option(help="Number of brokers.")]
Controllers = Annotated[int, typer.Option(help="Number of controllers: 1, 3 or 5.")]
Port = Annotated[
    int,
    typer.Option(help="Port of the first broker; the others use the next ones. 0: any free ports."),
]
Store = Annotated[
    str,
    typer.Option(
        help=(
            "Object store: moto | memory | file:DIR | s3://BUCKET?endpoint=URL | gs://BUCKET |"
            " az://ACCOUNT/CONTAINER"
        )
    ),
]
WalStore = Annotated[
    str,
    typer.Option(
        help=(
            "Second object store for the WALs: moto (another bucket of it) | file:DIR |"
            " s3://BUCKET?endpoint=URL | gs://BUCKET | az://ACCOUNT/CONTAINER"
        ),
        show_default=False,
    ),
]
Host = Annotated[
    str,
    typer.Option(help="Address to listen on; 0.0.0.0 accepts connections from other machines."),
]
ControllerPort = Annotated[
    int,
    typer.Option(
        help="Port of the first controller; the others use the next ones. 0: any free ports."
    ),
]
StorePort = Annotated[int, typer.Option(help="Port of the S3 server (moto). 0: any free port.")]
StateFile = Annotated[
    Path | None, typer.Option(envvar=VARIABLE, help="File for the state of the cluster, as JSON.")
]
Secure = Annotated[
    bool,
    typer.Option(
        "--secure",
        help=(
            "Require TLS and SCRAM from clients, ACLs, and TLS between nodes. Generates "
            "certificates, passwords and client properties."
        ),
    ),
]
AllowInsecure = Annotated[
    bool,
    typer.Option(
        "--allow-insecure",
        help="With --host: allow unauthenticated clients and nodes.",
    ),
]
Console = Annotated[
    bool,
    typer.Option(
        "--console/--no-console",
        help="Serve the web console on this machine, if the `console` extra is installed.",
    ),
]
ConsolePort = Annotated[
    int | None,
    typer.Option(
        help="Port of the web console; default: 9080, or any free port if it is taken.",
        show_default=False,
    ),
]
Restart = Annotated[
    bool,
    typer.Option("--restart/--no-restart", help="Restart brokers and controllers that die."),
]
AutoBalance = Annotated[
    bool,
    typer.Option(
        "--auto-balance",
        help="Balance the brokers' loads, and move partitions away from slow brokers.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting of nodes; `penstock config docs` describes them. Repeatable.",
    ),
]
Config = Annotated[
    str,
    typer.Option(
        "--config",
        envvar="PENSTOCK_CONFIG",
        metavar="FILE",
        help="TOML file with node settings.",
    ),
]
Topics = Annotated[
    str,
    typer.Option(
        help="Topics to create at startup, with partition counts, as in orders:3,clicks:12"
    ),
]
SeedFrom = Annotated[
    Path | None,
    typer.Option(
        help=(
            "Records to produce at startup: one JSON object per line (topic, key,"
            " value, headers, partition), or one plain value per line. Topics that are created"
            " with it keep records of any age."
        )
    ),
]
LogLevel = Annotated[
    str, typer.Option(help="Log level of the nodes: debug | info | warning | error.")
]


def dev(
    *,
    brokers: Brokers = 2,
    controllers: Controllers = 1,
    port: Port = 9092,
    store: Store = "moto",
    wal_store: WalStore = "",
    host: Host = "127.0.0.1",
    controller_port: ControllerPort = 0,
    store_port: StorePort = 0,
    secure: Secure = False,
    allow_insecure: AllowInsecure = False,
    state_file: StateFile = None,
    console: Console = True,
    console_port: ConsolePort = None,
    restart: Restart = True,
    auto_balance: AutoBalance = False,
    settings: Settings = None,
    config: Config = "",
    topics: Topics = "",
    seed_from: SeedFrom = None,
    log_level: LogLevel = "warning",
) -> None:
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

    contents = FirstContents(parse_topics(topics), seed_from)
    options = ClusterOptions(
        brokers=brokers,
        controllers=controllers,
        host=host,
        port=port,
        controller_port=controller_port,
        store_port=store_port,
        store=store,
        wal_store=wal_store,
        restart=restart,
        auto_balance=auto_balance,
        log_level=log_level,
        settings=tuple(settings or ()),
        config=config,
        secure=secure,
        allow_insecure=allow_insecure,
        console=console,
        console_port=console_port,
    )
    run_dev(options, state_file, _STARTED_AT, contents)
