"""One controller and one broker over a metered store in a process, controlled by lines on stdin.

Arguments: a JSON object such as '{"store": "memory:", "linger_ms": 0, "put_p50_ms": 0,
"put_p99_ms": 0}'. It prints `ready PORT`. Commands, each with one line of JSON as its response:
`stats`, `restart-broker`, and `count-nothing` and `count`, which patch metrics out and in.
"""

import asyncio
import contextlib
import json
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import structlog
import uvloop

from benchmarks.counting import set_counting
from penstock.base.buffers import Buffer
from penstock.base.collector import tune_collector
from penstock.broker.config import BrokerConfig
from penstock.broker.node import Broker
from penstock.broker.requests.long_requests import SWITCH_INTERVAL_S
from penstock.broker.security.config import SecurityConfig
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.objectstore.faults import FaultConfig, FaultyStore, Latency, Selection
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore
from penstock.objectstore.ports import Body, ObjectStore, ObjectTail
from penstock.objectstore.url import open_store, parse_store_url
from penstock.stream.config import StreamConfig
from penstock.stream.format.keys import DATA_ROOT, WAL_ROOT
from penstock.stream.wal.wal_defaults import wal_defaults
from penstock.stream.wal.wal_store import ConfiguredWalStore
from penstock.stream.wal.wal_store_url import open_backend

PUTS = frozenset({"put", "put_if_absent", "put_if_match"})


@dataclass(frozen=True, slots=True)
class ServerOptions:
    store: str = "memory:"
    linger_ms: int = 0
    put_p50_ms: float = 0.0
    put_p99_ms: float = 0.0
    wal_put_p50_ms: float = 0.0
    """Latencies of an in-memory WAL store; 0 means no separate WAL store."""
    wal_put_p99_ms: float = 0.0
    wal_dir: str = ""
    """Directory of a WAL store; empty for none."""
    waits: bool = True
    """Whether the WAL has its default batching delay, or none."""
    log_cache_bytes_max: int = 256 << 20
    block_bytes_max: int = 64 << 20
    cleaner_bytes_per_s_max: int = 32 << 20
    """0: no limit."""
    brokers: int = 1
    """Number of brokers in this process, with ids from 0. `restart-broker` restarts the
    first one.
    """
    security_dir: str = ""
    """The directory with keystore, truststore and users of a second listener, SASL_SSL; see
    `benchmarks.security`.
    """
    metrics_port: int = 0
    """Port of the first broker's `/metrics`; 0 for none."""


class KeyedStore(MeteredStore):
    """Also counts reads and writes by the first part of the object key."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    async def get(self, key: str) -> bytes:
        self.reads[_root_of(key)] += 1
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.reads[_root_of(key)] += 1
        return await super().get_range(key, start, length)

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        self.reads[_root_of(key)] += 1
        return await super().get_tail(key, length)

    async def put(self, key: str, body: Body) -> str:
        self.writes[_root_of(key)] += 1
        return await super().put(key, body)

    async def put_if_absent(self, key: str, body: Body) -> str:
        self.writes[_root_of(key)] += 1
        return await super().put_if_absent(key, body)


def _root_of(key: str) -> str:
    return f"{key.partition('/')[0]}/"


def open_metered(options: ServerOptions) -> KeyedStore:
    store: ObjectStore = open_store(options.store)
    return KeyedStore(delayed(store, options.put_p50_ms, options.put_p99_ms))


def open_wal_store(options: ServerOptions) -> ConfiguredWalStore | None:
    if options.wal_dir:
        url = f"file:{options.wal_dir}"
        return ConfiguredWalStore(open_backend(url), url)
    if not options.wal_put_p50_ms:
        return None
    store = delayed(MemoryStore(), options.wal_put_p50_ms, options.wal_put_p99_ms)
    return ConfiguredWalStore(store, "memory:")


def delayed(store: ObjectStore, p50_ms: float, p99_ms: float) -> ObjectStore:
    if p50_ms <= 0:
        return store
    latency = Latency(p50_ms, p99_ms, Selection(PUTS))
    return FaultyStore(store, Random(7), FaultConfig(latencies=(latency,)))


def stats(store: KeyedStore, broker: Broker) -> Mapping[str, object]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    operations = store.snapshot().operations
    return {
        "put_count": sum(stat.count for name, stat in operations.items() if name in PUTS),
        "put_bytes": sum(stat.written_bytes for name, stat in operations.items() if name in PUTS),
        "get_count": sum(stat.count for name, stat in operations.items() if name.startswith("get")),
        "get_bytes": sum(stat.read_bytes for stat in operations.values()),
        "data_reads": store.reads[DATA_ROOT],
        "data_writes": store.writes[DATA_ROOT],
        "wal_reads": store.reads[WAL_ROOT],
        "wal_writes": store.writes[WAL_ROOT],
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "cleaned_bytes": broker.cleaner.cleaned_bytes,
        "cleaner_busy_s": broker.cleaner.busy_s,
        "resident_bytes": resident_pages * resource.getpagesize(),
        "ports": broker.server.ports,
    }


def secured(directory: str) -> SecurityConfig:
    if not directory:
        return SecurityConfig()
    return SecurityConfig(
        ssl_keystore_location=f"{directory}/broker.pem",
        ssl_truststore_location=f"{directory}/ca.pem",
        sasl_users_file=f"{directory}/users",
        sasl_enabled_mechanisms=("SCRAM-SHA-256",),
    )


async def serve(options: ServerOptions) -> None:
    store = open_metered(options)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        wal_store = open_wal_store(options)
        controller = ControllerServer(
            ControllerConfig(data_dir=Path(directory)), store, wal_store=wal_store
        )
        await controller.start()
        stream_config = StreamConfig(
            wal_linger_ms=options.linger_ms,
            wal_hedge_factor=StreamConfig().wal_hedge_factor if options.linger_ms else 0,
            log_cache_bytes_max=options.log_cache_bytes_max,
            block_bytes_max=options.block_bytes_max,
        )
        if options.wal_dir:
            derived = wal_defaults(parse_store_url("memory:"), parse_store_url("file:/wals"))
            stream_config = replace(StreamConfig(), **derived.values)
        if not options.waits:
            stream_config = replace(
                stream_config, wal_linger_ms=0, wal_linger_idle_ms=0, wal_put_interval_ms=0
            )

        security = secured(options.security_dir)
        secure_listeners = ("SASL_SSL://127.0.0.1:0",) if options.security_dir else ()

        async def start_broker(port: int, node_id: int = 0) -> Broker:
            config = BrokerConfig(
                node_id=node_id,
                listeners=(f"127.0.0.1:{port}", *secure_listeners),
                controllers=(controller.address,),
                group_initial_rebalance_delay_ms=0,
                log_cleaner_backoff_ms=500,
                log_cleaner_bytes_per_s_max=options.cleaner_bytes_per_s_max,
            )
            return await Broker.start(
                config, store, stream_config, security=security, wal_store=wal_store
            )

        broker = await start_broker(0)
        others = [await start_broker(0, node_id) for node_id in range(1, options.brokers)]
        tune_collector()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        shown = contextlib.AsyncExitStack()
        if options.metrics_port:
            from penstock.broker.health import BrokerHealth, StoreProbe
            from penstock.deploy.node.health import serve_at
            from penstock.deploy.node.metrics.node import metrics_of

            health = BrokerHealth()
            health.started(broker, StoreProbe(store.close))
            await shown.enter_async_context(
                serve_at("127.0.0.1", options.metrics_port, metrics_of)(health)
            )
        say(f"ready {broker.port}")
        async for command in commands():
            if command == "restart-broker":
                await broker.stop()
                broker = await start_broker(broker.port)
            if command.startswith("count"):
                set_counting(command == "count")
            say(json.dumps(stats(store, broker)))
        await shown.aclose()
        for one in (broker, *others):
            await one.abandon()
        await controller.stop()
        await store.close()


async def commands() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        yield line.decode().strip()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    raw: dict[str, Any] = json.loads(sys.argv[1])
    uvloop.run(serve(ServerOptions(**raw)))


if __name__ == "__main__":
    main()
