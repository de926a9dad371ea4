"""Run one node as a process: `penstock broker` and `penstock controller`.

Invariant: does not import typer, rich or a Kafka client, so that brokers stay small and start fast.
The logic of nodes is in `broker.main` and `controller.main`.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.base.allocator import keep_freed_memory
from penstock.base.collector import pause_collector
from penstock.base.core_dumps import forgo_core_dumps
from penstock.base.open_files import raise_open_files_limit
from penstock.deploy.node import lifeline, logs

if TYPE_CHECKING:
    from penstock.base.health import ServeHealth
    from penstock.controller.api.tls import TlsFiles
    from penstock.deploy.node.config.definition import Role
    from penstock.deploy.node.config.effective import Effective


def run(role: "Role", arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run one node until it ends, and return the exit code. Raises UsageError."""
    forgo_core_dumps()
    os.umask(os.umask(0o077) | 0o007)  # objects and metadata logs must not be readable by all users
    raise_open_files_limit()
    pause_collector()
    lifeline.die_with_parent(environment)
    logs.keep_rich_out()
    if {"-h", "--help"} & set(arguments):
        from penstock.deploy.node.config.docs import help_text

        print(help_text(role))
        return 0
    from penstock.deploy.node.config.definition import ProcessConfig
    from penstock.deploy.node.config.load import load

    config = load(role, arguments, environment)
    logs.configure(config.part(ProcessConfig).log_level)
    return _run_broker(config, environment) if role == "broker" else _run_controller(config)


def _run_broker(config: "Effective", environment: Mapping[str, str]) -> int:
    from penstock.broker.config import BrokerConfig
    from penstock.broker.main import run as run_broker
    from penstock.broker.security.config import SecurityConfig
    from penstock.deploy.node.client_metrics import sender_of
    from penstock.deploy.node.config.definition import ProcessConfig
    from penstock.deploy.node.traces.set_up import of_requests
    from penstock.stream.compaction.plan import CompactionConfig
    from penstock.stream.config import StreamConfig

    keep_freed_memory()
    process = config.part(ProcessConfig)
    for store in filter(None, (process.store, process.wal_store)):
        check_sas_token(store, None, environment, time.time())
    stream, compaction = config.part(StreamConfig), config.part(CompactionConfig)
    security = config.part(SecurityConfig)
    with of_requests(process) as tracing:
        return run_broker(
            config.part(BrokerConfig),
            process.store,
            stream,
            compaction,
            _serve_health(config),
            security=security,
            tracing=tracing,
            tls=open_tls(config),
            metrics_sender=sender_of(config.part(BrokerConfig), environment),
            wal_store_url=process.wal_store,
        )


def _run_controller(config: "Effective") -> int:
    from penstock.base.errors import ExpectedError, StreamError
    from penstock.base.listening import ListenFailed
    from penstock.base.settings import fields_of, renamed
    from penstock.controller.api.errors import ControllerError
    from penstock.controller.config import ControllerConfig
    from penstock.controller.main import run as run_controller
    from penstock.deploy.errors import NotListening
    from penstock.deploy.node.config.definition import ProcessConfig
    from penstock.deploy.node.traces.set_up import of_moves
    from penstock.objectstore.errors import ObjectStoreError

    process = config.part(ProcessConfig)
    fence_kept_ms = config.part(ControllerConfig).fence_kept_ms
    for store in filter(None, (process.store, process.wal_store)):
        check_sas_token(store, fence_kept_ms, os.environ, time.time())
    try:
        with of_moves(process) as moved:
            return run_controller(
                config.part(ControllerConfig),
                process.store,
                _serve_health(config),
                moved=moved,
                tls=open_tls(config),
                wal_store_url=process.wal_store,
            )
    except (ControllerError, ObjectStoreError, StreamError, OSError) as error:
        names = {field.field: field.name for field in fields_of(ControllerConfig)}
        failed = NotListening if isinstance(error, ListenFailed) else ExpectedError
        raise failed(renamed(names, str(error))) from None


def check_sas_token(
    store: str, fence_retention_ms: int | None, environment: Mapping[str, str], now_s: float
) -> None:
    """Raise UsageError if the SAS token of the store may outlive fences: Azure would accept a PUT
    that a paused writer sent earlier, after the fence that stops it is deleted.

    fence_retention_ms: None for a broker, which does not have this setting.
    """
    from penstock.deploy.errors import UsageError
    from penstock.objectstore.azure_credentials import sas_expiry, sas_token
    from penstock.objectstore.config import AzureConfig
    from penstock.objectstore.url import parse_store_url

    azure = parse_store_url(store)
    token = sas_token(azure, environment) if isinstance(azure, AzureConfig) else None
    if token is None:
        return
    expiry = sas_expiry(token)
    if expiry is None:
        raise UsageError(
            f"the SAS token for {azure.redacted()} has no expiry (`se`) that can be read, so it may"
            " be valid for longer than wal.fence.retention.ms: use a token with its own expiry"
            " instead of a stored access policy, or a managed or workload identity"
        )
    if fence_retention_ms is not None and (expiry.timestamp() - now_s) * 1_000 > fence_retention_ms:
        raise UsageError(
            f"the SAS token for {azure.redacted()} expires at {expiry:%Y-%m-%dT%H:%MZ}, which is"
            " later than wal.fence.retention.ms from now: use a token that expires earlier, a"
            " longer wal.fence.retention.ms, or preferably a managed or workload identity"
        )


def open_tls(config: "Effective") -> "TlsFiles | None":
    """Return the certificate for connections between nodes, or None without TLS. Raises
    ExpectedError.
    """
    from penstock.base.errors import ExpectedError
    from penstock.controller.api.tls import TlsConfig, TlsFiles, TlsFilesInvalid

    try:
        return TlsFiles.open(config.part(TlsConfig))
    except TlsFilesInvalid as error:
        raise ExpectedError(str(error)) from None


def _serve_health(config: "Effective") -> "ServeHealth":
    """Return what serves health, metrics and console, and warns of insecure listeners. Raises
    UsageError.
    """
    from penstock.base.health import no_health_endpoint
    from penstock.base.listeners import parse_listeners
    from penstock.deploy.node.config.console import OFF, ConsoleConfig
    from penstock.deploy.node.config.definition import ProcessConfig
    from penstock.deploy.node.config.exposure import exposures
    from penstock.deploy.node.insecure import with_reminders

    serve: ServeHealth = no_health_endpoint
    found, console = exposures(config.parts), None
    if config.part(ConsoleConfig).access != OFF:
        from penstock.deploy.node.console import NodeConsole
        from penstock.deploy.node.console_plan import plan_console

        plan = plan_console(config)
        found += plan.insecure
        console = NodeConsole(plan)
        console.warn()
    if address := config.part(ProcessConfig).health_listener:
        from penstock.deploy.node.health import serve_at
        from penstock.deploy.node.metrics.node import metrics_of

        listener = parse_listeners("health_listener", [address])[0]
        serve = serve_at(listener.host, listener.port, metrics_of, console)
    return with_reminders(serve, found)
