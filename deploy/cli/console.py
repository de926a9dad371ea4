"""Run `penstock console`: a web console for a cluster."""

import os
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from penstock.base.extras import install_hint
from penstock.deploy.cli.options import Controller, StateFile, WalStore
from penstock.deploy.cli.registry_options import RegistryOptions
from penstock.deploy.errors import UsageError
from penstock.deploy.node import logs

_PORT: Final = 9080


@dataclass(frozen=True, kw_only=True)
class TargetOptions(RegistryOptions):
    """The cluster of the console."""

    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            "--bootstrap-server",
            "-b",
            envvar="PENSTOCK_BOOTSTRAP",
            help=(
                "Addresses of brokers, as HOST:PORT,HOST:PORT; default: from the profile, or from "
                "the running `penstock dev`."
            ),
            show_default=False,
        ),
    ] = ""
    controller: Controller = None
    store: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_STORE",
            help="Store of the brokers, for records and objects.",
            show_default=False,
        ),
    ] = ""
    wal_store: WalStore = ""
    state_file: StateFile = None


@dataclass(frozen=True, kw_only=True)
class ListenerOptions:
    """The address of the console, and its access control."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on. 0: any free port.")] = _PORT
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help=(
                "Host name that browsers use; IP addresses and localhost are always accepted. "
                "Repeatable."
            ),
            show_default=False,
        ),
    ] = None
    login: Annotated[
        bool,
        typer.Option("--login", help="Require users to log in with their cluster credentials."),
    ] = False
    ssl_certificate: Annotated[
        str, typer.Option(metavar="FILE", help="Certificate chain as PEM, for HTTPS.")
    ] = ""
    ssl_key: Annotated[
        str, typer.Option(metavar="FILE", help="Private key of the certificate, as PEM.")
    ] = ""
    allow_insecure: Annotated[
        bool,
        typer.Option("--allow-insecure", help="With --host: allow unauthenticated access."),
    ] = False
    base_path: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Path prefix of all pages, such as /console, for use behind a reverse proxy.",
            show_default=False,
        ),
    ] = ""
    fd: Annotated[int | None, typer.Option(hidden=True)] = None
    behind_node: Annotated[bool, typer.Option("--behind-node", hidden=True)] = False
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help=(
                "Allow changes to topics, configs, groups, leaders, snapshots, ACLs, users and "
                "quotas."
            ),
        ),
    ] = False


def console(*, cluster: TargetOptions, listener: ListenerOptions) -> None:
    """Serve a web console: overview, nodes, topics and their objects, moves, groups, transactions,
    records, snapshots, configs, security and the doctor.

    It is read-only without --allow-changes. Without --login, everyone with access to the
    address can see the cluster, so addresses other than loopback require --login or
    --allow-insecure. With --login, users act with their own rights.

    For example: penstock console --bootstrap b1:9092 --controller c1:9093 --store s3://my-bucket

    Or for others: penstock console --command-config console.properties --host 0.0.0.0 --name
    console.example.com --login --ssl-certificate cert.pem --ssl-key key.pem
    """
    from penstock.deploy.clients import state_file as states
    from penstock.deploy.clients.controllers import use_tls
    from penstock.deploy.clients.profiles import Profile, current_profile
    from penstock.deploy.clients.security import current_security
    from penstock.deploy.clients.target import connect_as, dev_cluster, existing_store
    from penstock.deploy.console.options import ConsoleOptions, check
    from penstock.deploy.node import lifeline

    lifeline.die_with_parent(os.environ)
    # Addresses in options are never combined with addresses in a profile or state file.
    path = cluster.state_file
    state = None if cluster.bootstrap else dev_cluster(path)
    used = Profile() if cluster.bootstrap or path else current_profile().profile
    bootstrap = cluster.bootstrap or used.bootstrap or (state.bootstrap if state else "")
    if not bootstrap:
        raise UsageError(
            "no brokers in --bootstrap or a profile, and no running cluster in"
            f" {path or states.default_path(os.environ)}: pass --bootstrap HOST:PORT, or start a"
            " cluster with `penstock dev`"
        )
    controller = cluster.controller or used.controller
    store = cluster.store or used.store
    if store and not listener.behind_node:  # a node may create its store later
        existing_store(store)
    wal_store = cluster.wal_store
    if state is not None:
        connect_as(state)
        if not controller:
            use_tls(state.controller_tls)
            controller = state.controller
        store = store or state.store_url
        if store == state.store_url:
            wal_store = wal_store or state.wal_store_url
    options = check(
        ConsoleOptions(
            bootstrap=bootstrap,
            controller=controller,
            store=store,
            wal_store=wal_store,
            host=listener.host,
            port=listener.port,
            names=tuple(listener.name or ()),
            login=listener.login,
            allow_changes=listener.allow_changes,
            allow_insecure=listener.allow_insecure,
            certificate=listener.ssl_certificate,
            key=listener.ssl_key,
            security=current_security(),
            file_descriptor=listener.fd,
            schema_registry=cluster.registry(),
            base=listener.base_path.rstrip("/"),
            is_behind_node=listener.behind_node,
        )
    )
    try:
        from penstock.deploy.console.server import serve
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the package {error.name} is missing: {install_hint('console')}"
        ) from None
    logs.to_stderr("warning")
    serve(options)
