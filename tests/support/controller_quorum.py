"""Several controllers in this process, over real sockets. Each can be stopped, cut off and started
again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from penstock.controller.api import messages as m
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.tls import TlsFiles
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.controller.raft.transport import PeerTransport
from penstock.controller.raft.volume import SlowVolume
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectStore
from tests.support.controller_cluster import Broker
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S, until

ELECTION_MS = 300
STEADY_ELECTION_MS = 60_000


class Quorum:
    """A quorum with short timeouts: an election takes 0.3 to 0.6 s. `leader` makes the timeouts
    long, because the controllers of a busy machine stall for seconds, and stopping or cutting off
    the leader or a majority makes them short again. Sessions are long, because a busy machine may
    need several elections. tls: the settings of each controller.
    """

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        tls: Callable[[int], TlsFiles | None] = lambda _: None,
        **settings: object,
    ) -> None:
        self._tls = tls
        self._directory = directory
        ports = free_ports(size)
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.store: ObjectStore = MemoryStore()
        values: dict[str, object] = {
            "cluster_id": "quorum",
            "peers": tuple(f"{number}@{address}" for number, address in enumerate(self.addresses)),
            "raft_heartbeat_ms": 50,
            "election_timeout_ms": ELECTION_MS,
            "heartbeat_interval_ms": 50,
            "session_timeout_ms": 60_000,
            "session_grace_ms": 500,
            "tick_interval_ms": 20,
            "maintenance_interval_ms": 50,
        }
        self._values = {**values, **settings}
        self.configs = {number: self._config(number, port) for number, port in enumerate(ports)}
        self.servers: dict[int, ControllerServer] = {}
        self.brokers: list[Broker] = []
        self._clients: list[ControllerClient] = []

    def _config(self, number: int, port: int, **settings: object) -> ControllerConfig:
        values = {
            **self._values,
            "data_dir": self._directory / str(number),
            "controller_id": number,
            "listeners": (f"127.0.0.1:{port}",),
            **settings,
        }
        return msgspec.convert(values, ControllerConfig, dec_hook=lambda kind, value: kind(value))

    async def start_newcomer(self, number: int, join: Sequence[str]) -> ControllerServer:
        """Start a controller with an empty directory and only the addresses of the controllers to
        join, without the cluster id.
        """
        (port,) = free_ports(1)
        directory = self._directory / f"{number}-{port}"
        self.configs[number] = self._config(
            number, port, join=tuple(join), peers=(), cluster_id="", data_dir=directory
        )
        return await self.start_one(number)

    def move_all(self) -> None:
        """Give all controllers new ports, which are known only from their configuration."""
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(len(self.configs))]
        self._values["peers"] = tuple(
            f"{number}@{address}" for number, address in enumerate(self.addresses)
        )
        for number, address in enumerate(self.addresses):
            self.configs[number] = self._config(number, int(address.rpartition(":")[2]))

    async def start(self) -> None:
        await asyncio.gather(*(self.start_one(number) for number in self.configs))
        await self.leader()

    async def start_one(self, number: int) -> ControllerServer:
        server = ControllerServer(self.configs[number], self.store, tls=self._tls(number))
        await server.start()
        assert server.quorum is not None
        # Otherwise, leaders with a slow disk transfer their leadership.
        server.quorum.core._volume = SlowVolume(PATIENCE_S * 1_000_000, ELECTION_MS)
        self.servers[number] = server
        return server

    async def stop_one(self, number: int) -> None:
        self._let_elect(number)
        await self.servers.pop(number).stop()

    async def leader(self, timeout_s: float = PATIENCE_S) -> int:
        """Return the number of the leader, once exactly one controller leads. From now on, it stays
        leader until it is stopped, cut off or replaced on request.
        """
        await until(
            lambda: sum(server.is_leading for server in self.servers.values()) == 1, timeout_s
        )
        self.set_election_ms(STEADY_ELECTION_MS)
        return next(number for number, server in self.servers.items() if server.is_leading)

    def set_election_ms(self, election_ms: int) -> None:
        """Change the election timeout of all running controllers, also for quorum changes, which
        need voters that have responded within it.
        """
        for server in self.servers.values():
            quorum = server.quorum
            if quorum is None:
                continue
            quorum.core._config = replace(quorum.core._config, election_ms=election_ms)
            quorum.core._reset_election_timer()
            quorum._node.pump()
            msgspec.structs.force_setattr(server._config, "election_timeout_ms", election_ms)

    def _let_elect(self, stopping: int) -> None:
        """Make the timeouts short if this controller leads or the others are no majority."""
        quorum = self.servers[stopping].quorum
        if quorum is None:
            return
        voters = quorum.core.log.members.voters
        left = set(voters) & set(self.servers) - {stopping}
        if quorum.core.is_leader or 2 * len(left) <= len(voters):
            self.set_election_ms(ELECTION_MS)

    def cut_off(self, number: int) -> None:
        """Drop all messages between this voter and the others until `heal`."""
        self._let_elect(number)
        self.drop_messages(number)

    def drop_messages(self, number: int) -> None:
        """Like `cut_off`, but a leader stays leader."""
        for other, server in self.servers.items():
            _transport(server).cut = set(self.servers) - {other} if other == number else {number}

    def heal(self) -> None:
        for server in self.servers.values():
            _transport(server).cut = set()

    def client(self) -> ControllerClient:
        """Return a client that is closed no later than the quorum: a client left behind by a failed
        test would keep running during later tests.
        """
        self._clients.append(ControllerClient(self.addresses))
        return self._clients[-1]

    async def broker(self) -> Broker:
        self.brokers.append(await Broker.registered(self.client()))
        return self.brokers[-1]

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        await asyncio.gather(*(client.close() for client in self._clients))
        await asyncio.gather(*(server.stop() for server in self.servers.values()))


async def put(client: ControllerClient, key: str) -> None:
    await client.put_key_value(m.PutKeyValue(key=key, value=b"v"), timeout_s=PATIENCE_S)


async def get(client: ControllerClient, key: str) -> bytes | None:
    return (await client.get_key_value(m.GetKeyValue(key=key), timeout_s=PATIENCE_S)).value


class CuttableTransport(PeerTransport):
    """Drops messages to the voters in `cut`."""

    cut: set[int]

    def send(self, message: object) -> None:
        if getattr(message, "to", None) not in getattr(self, "cut", set()):
            super().send(message)  # required by the type of the port; only the receiver is used


def _transport(server: ControllerServer) -> CuttableTransport:
    transport = server._transport
    assert isinstance(transport, PeerTransport)
    transport.__class__ = CuttableTransport
    return transport  # has just been created
