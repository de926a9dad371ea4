"""A cluster in the test's event loop: one controller and some brokers on one store, on free ports.

async with Cluster(tmp_path, brokers=2) as cluster: ... cluster.bootstrap ...

Blocking clients run in threads (`asyncio.to_thread`). `kill_broker` is a crash: it flushes nothing.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from penstock.broker.config import BrokerConfig
from penstock.broker.node import Broker
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.tls import TlsFiles
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.controller.metadata.objects import ObjectPhase
from penstock.deploy.node.client_metrics import sender_of
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore
from penstock.objectstore.ports import ObjectStore
from penstock.stream.config import StreamConfig
from penstock.stream.wal.wal_store import ConfiguredWalStore
from tests.support.waiting import PATIENCE_S, until

SESSION_TIMEOUT_MS = 30_000
"""Brokers in tests must not lose their session when the machine is busy for a few seconds."""

SHORT_SESSION = {"session_timeout_ms": 3_000}
"""Controller settings for tests that wait for the end of a session."""

READY_S = PATIENCE_S


@dataclass(frozen=True)
class NodeTls:
    """TLS between nodes."""

    controller: TlsFiles
    broker: TlsFiles


class Cluster:
    """One controller and its brokers.

    Broker settings are passed as `broker_settings` (fields of BrokerConfig). stores: other views of
    the store, by node id.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        first_id: int = 0,
        store: ObjectStore | None = None,
        stream_config: StreamConfig | None = None,
        controller_settings: dict[str, Any] | None = None,
        stores: Mapping[int, ObjectStore] | None = None,
        security: SecurityConfig | None = None,
        node_tls: NodeTls | None = None,
        wal_store: ConfiguredWalStore | None = None,
        **broker_settings: Any,
    ) -> None:
        self.directory = directory
        self.store = store or MemoryStore()
        self.brokers: dict[int, Broker] = {}
        self.controller: ControllerServer | None = None
        self._node_ids = range(first_id, first_id + brokers)
        self._stream_config = stream_config or StreamConfig(wal_linger_ms=0)
        self._settings = {
            "group_initial_rebalance_delay_ms": 0,
            "log_retention_check_interval_ms": 86_400_000,  # tests write old timestamps
            "offsets_topic_num_partitions": 4,
            "transaction_state_log_num_partitions": 4,
            "share_coordinator_state_topic_num_partitions": 4,
        } | broker_settings
        self._controller_port = 0
        self._stores = stores or {}
        self._security = security
        self._node_tls = node_tls
        self.wal_store = wal_store
        """The WAL store of nodes that are started from now on."""
        self._controller_settings = {
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "delete_grace_ms": 0,
        } | (controller_settings or {})

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def broker(self) -> Broker:
        """Return the only broker, or the first."""
        return next(iter(self.brokers.values()))

    async def __aenter__(self) -> Self:
        try:
            await self.start_controller()
            for node_id in self._node_ids:
                await self.start_broker(node_id)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start_controller(self, **settings: Any) -> None:
        """Start the controller; after `stop_controller`, on the same directory and port."""
        config = ControllerConfig(
            data_dir=self.directory / "controller",
            listeners=(f"127.0.0.1:{self._controller_port}",),
            **self._controller_settings | settings,
        )
        tls = self._node_tls
        self.controller = ControllerServer(
            config,
            self.store,
            tls=None if tls is None else tls.controller,
            wal_store=self.wal_store,
        )
        await self.controller.start()
        self._controller_port = self.controller.port

    async def stop_controller(self) -> None:
        controller, self.controller = self.controller, None
        if controller is not None:
            await controller.stop()

    async def start_broker(self, node_id: int, **settings: Any) -> Broker:
        config = BrokerConfig(
            **{
                "node_id": node_id,
                "listeners": ("127.0.0.1:0",),
                "controllers": (f"127.0.0.1:{self._controller_port}",),
                "shutdown_timeout_ms": 10_000,
                "registration_timeout_ms": PATIENCE_S * 1_000,
            }
            | self._settings
            | settings
        )
        store = self.store_of(node_id)
        stats = store.snapshot if isinstance(store, MeteredStore) else None
        broker = await Broker.start(
            config,
            store,
            self._stream_config,
            security=self._security,
            tls=None if self._node_tls is None else self._node_tls.broker,
            store_stats=stats,
            metrics_sender=sender_of(config, {}),
            wal_store=self.wal_store,
        )
        self.brokers[node_id] = broker
        return broker

    def store_of(self, node_id: int) -> ObjectStore:
        """Return the broker's view of the store. Subclasses add faults."""
        return self._stores.get(node_id, self.store)

    async def stop_broker(self, node_id: int) -> None:
        """Stop the broker as SIGTERM does."""
        await self.brokers.pop(node_id).stop()

    async def kill_broker(self, node_id: int) -> None:
        """Stop the broker as SIGKILL does: it flushes nothing."""
        await self.brokers.pop(node_id).abandon()

    async def stop(self) -> None:
        brokers, self.brokers = list(self.brokers.values()), {}
        await asyncio.gather(*(broker.abandon() for broker in brokers))
        await self.stop_controller()

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the leader in the first broker's image, or -1 if there is none."""
        state = self.broker.image.topics.by_name(topic)
        return -1 if state is None else state.partitions[partition].leader

    async def until_served(self, topic: str, partition: int = 0) -> Broker:
        """Return the broker that has opened the partition, once there is one."""

        def serving() -> list[Broker]:
            return [
                broker
                for broker in self.brokers.values()
                if not isinstance(broker.partitions.get(topic, partition), int)
            ]

        await until(lambda: bool(serving()))
        return serving()[0]

    async def data_keys(self) -> set[str]:
        """Return the keys below `data/` in the store."""
        return {info.key async for info in self.store.list("data/")}

    async def until_janitor_done(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until every object in the store is referenced by a log. Raises TimeoutError.

        PREPARED objects are exempt: an upload that was in progress when its broker stopped stays
        prepared until it expires.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                states = [state for state in self.broker.image.objects if state.wal is None]
                referred = {state.key for state in states if state.refs}
                prepared = {state.key for state in states if state.phase == ObjectPhase.PREPARED}
                keys = await self.data_keys()
                if referred <= keys <= referred | prepared:
                    return
                await asyncio.sleep(0.1)


def deleting_cluster(
    directory: Path, *, delete_grace_ms: int = 0, **broker_settings: Any
) -> Cluster:
    """Return two brokers that upload every second, and a controller that deletes objects within a
    second.
    """
    return Cluster(
        directory,
        brokers=2,
        stream_config=StreamConfig(
            wal_linger_ms=0, block_age_max_ms=1_000, wal_delete_grace_ms=500
        ),
        controller_settings={
            "read_grace_ms": 500,
            "janitor_interval_ms": 200,
            "maintenance_interval_ms": 200,
            "delete_grace_ms": delete_grace_ms,
        },
        **broker_settings,
    )
