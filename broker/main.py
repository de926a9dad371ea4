"""Run the broker process until a signal arrives. Heavy modules are imported inside functions, to
keep `--help` fast. Exit codes: 0 = stopped gracefully (SIGTERM, SIGINT); 1 = failed to start, with
the reason in the log; 3 = fenced and not restarted, because another process runs this node, the
metadata cannot be followed, or the last incarnation ended within RESTART_LIFE_S; 4 = the port is
already in use.
"""

import asyncio
import signal
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

import structlog

from penstock.base.collector import tune_collector
from penstock.base.health import ServeHealth, no_health_endpoint
from penstock.base.listening import EXIT_NOT_LISTENING
from penstock.base.log import NamedOutput
from penstock.base.readiness import report_ready
from penstock.base.stacks import dump_stacks_on_quit
from penstock.broker.client_metrics.sender import MetricsSender
from penstock.broker.config import BrokerConfig
from penstock.broker.health import BrokerHealth, StoreProbe
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.tls import TlsFiles
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig
from penstock.stream.wal.tracing import Tracing

if TYPE_CHECKING:
    from penstock.broker.node import Broker
    from penstock.objectstore.ports import ObjectStore
    from penstock.stream.wal.wal_store import ConfiguredWalStore

log = structlog.get_logger(__name__)

EXIT_OK: Final = 0
EXIT_NOT_STARTED: Final = 1
EXIT_FENCED: Final = 3

RESTART_TRIES_MAX: Final = 3
"""Maximum number of additional attempts if the session of the next incarnation expires before it
serves clients.
"""

RESTART_LIFE_S: Final = 10.0
"""If an incarnation ends sooner than this, the process exits, so that the supervisor's restart
backoff applies.
"""


def run(
    config: BrokerConfig,
    store_url: str,
    stream_config: StreamConfig,
    compaction_config: CompactionConfig,
    serve_health: ServeHealth = no_health_endpoint,
    *,
    security: SecurityConfig | None = None,
    tracing: Tracing | None = None,
    tls: TlsFiles | None = None,
    metrics_sender: MetricsSender | None = None,
    wal_store_url: str = "",
) -> int:
    """Run one broker in this process, and return the exit code. tls: for connections to
    controllers; None for plaintext. metrics_sender: forwards client metrics. wal_store_url: empty
    if the WAL is in the main store.
    """
    import uvloop

    structlog.configure(logger_factory=partial(NamedOutput, sys.stderr))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            serve(
                config,
                store_url,
                stream_config,
                compaction_config,
                serve_health,
                security=security,
                tracing=tracing,
                tls=tls,
                metrics_sender=metrics_sender,
                wal_store_url=wal_store_url,
            )
        )


async def serve(
    config: BrokerConfig,
    store_url: str,
    stream_config: StreamConfig,
    compaction_config: CompactionConfig,
    serve_health: ServeHealth = no_health_endpoint,
    *,
    security: SecurityConfig | None = None,
    tracing: Tracing | None = None,
    tls: TlsFiles | None = None,
    metrics_sender: MetricsSender | None = None,
    wal_store_url: str = "",
) -> int:
    from penstock.broker.requests.long_requests import SWITCH_INTERVAL_S
    from penstock.objectstore.errors import ObjectStoreError
    from penstock.objectstore.url import location, open_store
    from penstock.stream.wal.wal_store import close_stores
    from penstock.stream.wal.wal_store_url import open_wal_store

    # Import this before the health endpoint is started, because it is slow.
    import_module("penstock.broker.node")
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    dump_stacks_on_quit(loop)
    health = BrokerHealth()
    try:
        store = open_store(store_url, meter=health.requests)
        wal_store = open_wal_store(
            wal_store_url, store_url, meter=health.requests, calls=health.wal_store_calls
        )
    except (ObjectStoreError, OSError) as error:
        log.error("broker_start_failed", reason=str(error))
        return EXIT_NOT_STARTED
    try:
        async with serve_health(health):
            tries_left = 0
            while True:
                broker = await _start(
                    config,
                    store,
                    stream_config,
                    compaction_config,
                    health,
                    security=security,
                    tracing=tracing,
                    log_dir=location(store_url),
                    tls=tls,
                    metrics_sender=metrics_sender,
                    wal_store=wal_store,
                )
                if isinstance(broker, int):
                    if broker != EXIT_FENCED or tries_left == 0:
                        return broker
                    tries_left -= 1
                    continue
                tries_left = RESTART_TRIES_MAX
                report_ready(broker.cluster_id)
                tune_collector()
                sys.setswitchinterval(SWITCH_INTERVAL_S)
                code = await _run_until_ended(
                    broker, store, health, stop_requested, wal_store=wal_store
                )
                if code is not None:
                    return code
                health.begin_restart()
    finally:
        await close_stores(store, wal_store)


async def _start(
    config: BrokerConfig,
    store: "ObjectStore",
    stream_config: StreamConfig,
    compaction_config: CompactionConfig,
    health: BrokerHealth,
    *,
    security: SecurityConfig | None,
    tracing: Tracing | None,
    log_dir: str,
    tls: TlsFiles | None,
    metrics_sender: MetricsSender | None,
    wal_store: "ConfiguredWalStore | None",
) -> "Broker | int":
    """Return the broker, or the exit code if it cannot start."""
    from penstock.base.errors import StreamError
    from penstock.broker.network.server import PortTaken
    from penstock.broker.node import Broker
    from penstock.broker.security.tls import SecurityFileInvalid
    from penstock.broker.self_check import UnreachableAsAdvertised
    from penstock.controller.api.errors import ControllerError, NodeRefused
    from penstock.controller.api.follower import FollowerFenced
    from penstock.objectstore.errors import ObjectStoreError

    try:
        return await Broker.start(
            config,
            store,
            stream_config,
            compaction_config,
            security=security,
            store_stats=health.requests.snapshot,
            tracing=tracing,
            log_dir=log_dir,
            tls=tls,
            metrics_sender=metrics_sender,
            wal_store=wal_store,
        )
    except PortTaken as error:
        log.error("broker_start_failed", reason=str(error))
        return EXIT_NOT_LISTENING
    except (
        UnreachableAsAdvertised,
        SecurityFileInvalid,
        ControllerError,
        ObjectStoreError,
        StreamError,
        TimeoutError,
    ) as error:
        log.error("broker_start_failed", reason=str(error))
        is_fenced = isinstance(error, NodeRefused | FollowerFenced)
        return EXIT_FENCED if is_fenced else EXIT_NOT_STARTED


async def _run_until_ended(
    broker: "Broker",
    store: "ObjectStore",
    health: BrokerHealth,
    stop_requested: asyncio.Event,
    *,
    wal_store: "ConfiguredWalStore | None",
) -> int | None:
    """Serve until a signal arrives or the broker is fenced. Return the exit code, or None to
    restart.
    """
    from penstock.broker.background.duties import PROBE_PREFIX
    from penstock.broker.incarnations import may_restart

    began_at = asyncio.get_running_loop().time()

    async def put_probes() -> None:
        """Write to the store, and also to the WAL store while it contains the WAL."""
        is_in_wal_store = wal_store is not None and broker.storage.wal_store is not None
        for each in (store, *((wal_store.store,) if wal_store and is_in_wal_store else ())):
            await each.put(f"{PROBE_PREFIX}health-{broker.node_id}", b"x")

    probe = StoreProbe(put_probes)
    health.started(broker, probe)
    stop_task = asyncio.get_running_loop().create_task(stop_requested.wait())
    await asyncio.wait((stop_task, broker.ended), return_when=asyncio.FIRST_COMPLETED)
    stop_task.cancel()
    if not broker.ended.done():
        health.stopping()
        await broker.stop()
        await probe.close()
        return EXIT_OK
    lived_s = asyncio.get_running_loop().time() - began_at
    begin_restart = lived_s >= RESTART_LIFE_S and await may_restart(broker)
    await broker.abandon()
    await probe.close()
    if not begin_restart or stop_requested.is_set():
        return EXIT_FENCED
    log.warning("broker_restarting", node_id=broker.node_id, node_epoch=broker.node_epoch)
    return None
