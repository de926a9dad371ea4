"""A cluster with faults between each broker and its store, and between each broker and the
controller.

`FaultCluster(tmp_path, brokers=2)`: `faults[1].config = FaultConfig(...)` affects broker 1 only,
and the PUTs of `faults[1].park_puts()` hang until `release`, even if their sender has died.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from penstock.broker.node import Broker
from penstock.controller.api.client import ControllerClient
from penstock.objectstore.faults import Fault, FaultyStore
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.stream.config import StreamConfig
from tests.support.cluster import SHORT_SESSION, Cluster
from tests.support.stream_server import StreamServer

T = TypeVar("T")

PUTS = frozenset({"put", "put_if_absent", "put_if_match"})
RETRIES = RetryPolicy(backoff_ms=10, backoff_max_ms=200)


class BrokerStore(FaultyStore):
    """A FaultyStore that can also park PUTs: they neither fail nor complete until `release`."""

    def __init__(self, store: ObjectStore, rng: Random) -> None:
        super().__init__(store, rng)
        self.parked_count = 0
        self._parks_after: bool | None = None
        self._released = asyncio.Event()
        self._on_the_way: set[asyncio.Task[Any]] = set()

    def park_puts(self, *, after: bool = False) -> None:
        """Park PUTs from now on. after: let the store execute them, and delay only the
        responses.
        """
        self._parks_after = after
        self._released.clear()

    def release(self) -> None:
        self._parks_after = None
        self._released.set()

    async def arrived(self) -> None:
        """Wait until no parked request is in flight."""
        while self._on_the_way:
            await asyncio.wait(self._on_the_way)

    async def _call(
        self, operation: str, key: str, call: Callable[[], Awaitable[T]]
    ) -> tuple[T, Fault | None]:
        if self._parks_after is None or operation not in PUTS:
            return await super()._call(operation, key, call)
        self.parked_count += 1
        task = asyncio.ensure_future(self._parked(operation, key, call, after=self._parks_after))
        self._on_the_way.add(task)
        task.add_done_callback(self._arrived)
        return await asyncio.shield(task)

    async def _parked(
        self, operation: str, key: str, call: Callable[[], Awaitable[T]], *, after: bool
    ) -> tuple[T, Fault | None]:
        if not after:
            await self._released.wait()
        response = await super()._call(operation, key, call)
        if after:
            await self._released.wait()
        return response

    def _arrived(self, task: "asyncio.Task[Any]") -> None:
        self._on_the_way.discard(task)
        if not task.cancelled():
            task.exception()  # its sender may have died


class Link:
    """A connection to the controller that can be cut: no bytes pass in either direction, and
    neither side sees an error.
    """

    def __init__(self, port: int) -> None:
        self._target_port = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._server = StreamServer(self._relay)

    def open(self) -> str:
        return f"127.0.0.1:{self._server.open()}"

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._server.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            await asyncio.gather(self._pump(reader, their_writer), self._pump(their_reader, writer))
        finally:
            their_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(64 * 1024):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def _only_configured(client: ControllerClient) -> None:
    """Keep the client on its configured addresses, so that a broker behind a link cannot bypass it
    through addresses that the quorum announces.
    """
    client._addresses = list(client._configured)
    client.learn = lambda addresses: None


class FaultCluster(Cluster):
    """A cluster with faulty stores and links, by node id. Both apply to the current start of the
    broker.

    Blocks and caches are small, so brokers upload and read frequently.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 2,
        linked: bool = False,
        seed: int = 1,
        controller_settings: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        config = StreamConfig(
            wal_linger_ms=0,
            block_bytes_max=256 * 1024,
            block_age_max_ms=700,
            stream_object_bytes_min=64 * 1024,
            log_cache_bytes_max=64 << 20,
            block_cache_bytes_max=64 * 1024,
            wal_delete_grace_ms=500,
        )
        super().__init__(
            directory,
            brokers=brokers,
            stream_config=config,
            controller_settings=SHORT_SESSION | (controller_settings or {}),
            **settings,
        )
        self.faults: dict[int, BrokerStore] = {}
        self.links: dict[int, Link] = {}
        self._linked = linked
        self._seed = seed
        self._ports: dict[int, int] = {}
        self._past: list[BrokerStore] = []

    def store_of(self, node_id: int) -> ObjectStore:
        self._seed += 1
        self.faults[node_id] = faults = BrokerStore(self.store, Random(self._seed))
        self._past.append(faults)
        return RetryingStore(faults, RETRIES, rng=Random(self._seed))

    async def start_broker(self, node_id: int, **settings: Any) -> Broker:
        """Start the broker. Later starts use the same port."""
        settings.setdefault("listeners", (f"127.0.0.1:{self._ports.get(node_id, 0)}",))
        if self._linked:
            if node_id in self.links:
                self.links.pop(node_id).close()
            self.links[node_id] = link = Link(self._controller_port)
            settings["controllers"] = (link.open(),)
        broker = await super().start_broker(node_id, **settings)
        if self._linked:
            _only_configured(broker.client)
        self._ports[node_id] = broker.port
        return broker

    async def stop(self) -> None:
        for faults in self._past:
            faults.release()
        await super().stop()
        for link in self.links.values():
            link.close()
        for faults in self._past:
            await faults.arrived()
