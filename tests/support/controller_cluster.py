"""A controller in this process and, over real sockets, the parts of brokers that connect to it."""

import asyncio
from pathlib import Path
from typing import Self
from uuid import uuid4

import msgspec

from penstock.controller.active.writer import Runtime
from penstock.controller.api import messages as m
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.api.tls import TlsFiles
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.controller.metadata.features import SUPPORTED
from penstock.controller.metadata.image import MetadataImage
from penstock.objectstore.memory import MemoryStore
from penstock.stream.ports import BrokerIncarnation
from tests.support.managers_cluster import registration
from tests.support.waiting import PATIENCE_S


def new_registration(node_id: int = -1) -> m.RegisterBroker:
    """Return the registration of a new start of a broker."""
    return registration(node_id, incarnation_id=uuid4(), features=SUPPORTED)


class Broker:
    """The controller-facing parts of a broker: client, follower, stream metadata."""

    def __init__(
        self, client: ControllerClient, follower: MetadataFollower, node: BrokerIncarnation
    ) -> None:
        self.client = client
        self.follower = follower
        self.node = node
        self.metadata = ControllerStreamMetadata(client, follower, node, timeout_s=PATIENCE_S)

    @classmethod
    async def registered(cls, client: ControllerClient, node_id: int = -1) -> Self:
        """Register a broker, and follow the metadata as its session."""
        request = new_registration(node_id)
        registered = await client.register_broker(request, timeout_s=PATIENCE_S)
        node = BrokerIncarnation(registered.node_id, registered.node_epoch)
        follower = MetadataFollower(client, node, heartbeat_interval_s=0.05)
        await follower.start(PATIENCE_S)
        client.bind(follower)
        return cls(client, follower, node)

    @property
    def image(self) -> MetadataImage:
        return self.follower.image

    async def stop(self) -> None:
        await self.follower.stop()
        await self.client.close()


class Cluster:
    """One controller and its brokers. It can be stopped and started again on its directory.
    Sessions are long, because a busy machine may delay heartbeats by seconds. tls: the TLS settings
    of the controller; its clients then need their own.
    """

    def __init__(self, directory: Path, *, tls: TlsFiles | None = None, **settings: object) -> None:
        self._tls = tls
        values: dict[str, object] = {
            "data_dir": directory,
            "heartbeat_interval_ms": 50,
            "session_timeout_ms": 60_000,
            "session_grace_ms": 200,
            "tick_interval_ms": 20,
            "maintenance_interval_ms": 50,
        }
        self.config = ControllerConfig(**{**values, **settings})
        self.store = MemoryStore()
        self.server = ControllerServer(self.config, self.store, tls=tls)
        self.brokers: list[Broker] = []
        self._clients: list[ControllerClient] = []

    async def start(self) -> None:
        await self.server.start()

    async def restart(self) -> None:
        port = self.server.port
        await self.server.stop()
        self.server = ControllerServer(
            msgspec.structs.replace(self.config, listeners=(f"127.0.0.1:{port}",)),
            self.store,
            tls=self._tls,
        )
        await self.server.start()

    @property
    def runtime(self) -> Runtime:
        runtime = self.server.runtime
        assert runtime is not None
        return runtime

    async def snapshot(self) -> None:
        """Take a snapshot now, as the snapshot task does when the log has grown."""
        assert self.server.snapshotter is not None
        await self.server.snapshotter.take()

    def client(self, tls: TlsFiles | None = None) -> ControllerClient:
        """Return a client that is closed no later than the cluster."""
        self._clients.append(ControllerClient([self.server.address], tls=tls))
        return self._clients[-1]

    async def broker(self, node_id: int = -1, *, tls: TlsFiles | None = None) -> Broker:
        self.brokers.append(await Broker.registered(self.client(tls), node_id))
        return self.brokers[-1]

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        await asyncio.gather(*(client.close() for client in self._clients))
        await self.server.stop()
