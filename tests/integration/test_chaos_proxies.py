"""The faults of `make chaos` take effect. Otherwise the chaos test could not find bugs."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from types import MappingProxyType

import pytest

from tests.chaos.links import Network
from tests.chaos.schedule import ALL, CLIENTS, Fault, Kind
from tests.chaos.store_proxy import StoreProxy
from tests.support.ports import free_port
from tests.support.stream_server import StreamServer
from tests.support.waiting import until

NODE = "broker 0"
PUT = b"PUT /b/k HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """A server that records received bytes and sends the test's responses."""

    def __init__(self, response: Callable[[bytes], bytes] = lambda _: b"") -> None:
        self.received = b""
        self.writer: asyncio.StreamWriter | None = None
        self._respond = response
        self._server = StreamServer(self._serve)

    def start(self) -> int:
        return self._server.open()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while data := await reader.read(4096):
            self.received += data
            writer.write(self._respond(self.received))

    def stop(self) -> None:
        self._server.close()


class Linked:
    """One client connected to one node through its proxy. `pids`: the processes of other nodes."""

    def __init__(self, pids: Mapping[str, int] = MappingProxyType({})) -> None:
        self.server = Server()
        self.network = Network(lambda: {NODE: None, **pids})
        self.port = free_port()

    async def start(self) -> None:
        self.network.add(NODE, self.port, self.server.start())
        await self.network.node_runs(NODE)
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(b"first")
        await until(lambda: self.server.received == b"first")

    async def stop(self) -> None:
        self.writer.close()
        self.server.stop()
        await self.network.close()


@pytest.fixture
async def linked() -> AsyncIterator[Linked]:
    linked = Linked()
    await linked.start()
    yield linked
    await linked.stop()


async def test_one_way_cut_holds_back_data_that_arrives_after_healing(linked: Linked) -> None:
    linked.network.cut(CLIENTS, NODE)
    linked.writer.write(b" second")
    assert linked.server.writer is not None
    linked.server.writer.write(b"down")
    assert await linked.reader.readexactly(4) == b"down"
    assert linked.server.received == b"first"
    linked.network.heal(CLIENTS, NODE, late=True)
    await until(lambda: linked.server.received == b"first second")


async def test_data_held_back_by_a_cut_is_lost_with_its_connection(linked: Linked) -> None:
    linked.network.cut(CLIENTS, NODE)
    linked.writer.write(b" second")
    linked.network.heal(CLIENTS, NODE, late=False)
    with pytest.raises(ConnectionResetError):
        await linked.reader.readexactly(1)
    assert linked.server.received == b"first"


async def test_held_data_arrives_after_data_of_a_newer_connection(linked: Linked) -> None:
    assert await late_counts(linked, CLIENTS) == (0, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc names the client")
async def test_late_data_of_nodes_and_clients_is_counted_separately() -> None:
    linked = Linked({"broker 1": os.getpid()})
    await linked.start()
    assert await late_counts(linked, "broker 1") == (1, 0)
    await linked.stop()


async def late_counts(linked: Linked, source: str) -> tuple[int, int]:
    """Hold a chunk until its sender has closed the connection and used another one. Return the
    counts of late chunks of nodes and of clients.
    """
    hold = linked.network.hold(source, NODE)
    linked.writer.write(b" held")
    _, newer = await asyncio.open_connection("127.0.0.1", linked.port)
    newer.write(b" newer")
    await until(lambda: linked.server.received == b"first newer")
    linked.writer.close()
    newer.write(b" again")
    await until(lambda: linked.server.received == b"first newer again")
    linked.network.release(hold)
    await until(lambda: linked.server.received == b"first newer again held")
    newer.close()
    return linked.network.late_count, linked.network.late_client_count


async def test_hold_without_a_connection_applies_to_the_next_one(linked: Linked) -> None:
    linked.network.reset_node(NODE)
    with pytest.raises(ConnectionResetError):
        await linked.reader.readexactly(1)
    hold = linked.network.hold(CLIENTS, NODE)
    assert not hold.connections
    writers: list[asyncio.StreamWriter] = []
    for data in (b" held", b" newer"):
        _, writer = await asyncio.open_connection("127.0.0.1", linked.port)
        writers.append(writer)
        await until(lambda: len(hold.connections) == 1)
        writer.write(data)
    await until(lambda: linked.server.received == b"first newer")
    linked.network.release(hold)
    await until(lambda: linked.server.received == b"first newer held")
    for writer in writers:
        writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc names the client")
@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
)
async def test_proxy_distinguishes_connections_of_nodes_from_those_of_clients(
    family: socket.AddressFamily, host: str
) -> None:
    """Brokers connect to each other and to controllers, and gRPC uses IPv6 sockets. In this test,
    the connecting node is this process.
    """
    server, port = Server(), free_port()
    network = Network(lambda: {NODE: None, "broker 1": os.getpid()})
    network.add(NODE, port, server.start())
    await network.node_runs(NODE)
    dialling = socket.socket(family)
    dialling.setblocking(False)
    await asyncio.get_running_loop().sock_connect(dialling, (host, port))
    _, writer = await asyncio.open_connection(sock=dialling)
    network.cut(CLIENTS, NODE)
    writer.write(b"first")
    await until(lambda: server.received == b"first")
    network.cut("broker 1", NODE)
    writer.write(b" second")
    hold = network.hold(CLIENTS, NODE)
    network.release(hold)
    assert (server.received, network.connection_counts["broker", "broker"]) == (b"first", 1)
    network.heal("broker 1", NODE, late=True)
    await until(lambda: server.received == b"first second")
    writer.close()
    server.stop()
    await network.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc names the client")
async def test_node_is_identified_although_other_connections_share_its_local_port() -> None:
    """The kernel may use one local port for connections to different targets, and closed
    connections stay in its table for a minute.
    """
    server, port = Server(), free_port()
    network = Network(lambda: {NODE: None, "broker 1": os.getpid()})
    network.add(NODE, port, server.start())
    await network.node_runs(NODE)
    dialling = dialler(0)
    local_port = dialling.getsockname()[1]
    for _ in range(8):
        with socket.create_server(("127.0.0.1", 0)) as other, dialler(local_port) as closed:
            closed.connect(other.getsockname())
            accepted, _ = other.accept()
            closed.close()
            assert accepted.recv(1) == b""
            accepted.close()
    dialling.connect(("127.0.0.1", port))
    _, writer = await asyncio.open_connection(sock=dialling)
    await until(lambda: network.connection_counts.total() == 1)
    assert network.connection_counts["broker", "broker"] == 1
    writer.close()
    server.stop()
    await network.close()


def dialler(port: int) -> socket.socket:
    """Return a socket with this local port, which other sockets may share."""
    dialling = socket.socket()
    dialling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    dialling.bind(("127.0.0.1", port))
    return dialling


async def test_stopped_node_refuses_connections(linked: Linked) -> None:
    linked.network.node_ended(NODE)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", linked.port)


def fault(kind: Kind, *, late: bool = False) -> Fault:
    return Fault(kind, (ALL,), 0, 1, late=late)


async def requested(port: int) -> bytes:
    """Return the response bytes to one PUT, until the response or the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PUT)
    response = b""
    try:
        while not response.endswith((b"ok", b"</Error>")) and (data := await reader.read(4096)):
            response += data
    except ConnectionResetError:
        pass
    writer.close()
    return response


@pytest.fixture
async def store() -> AsyncIterator[tuple[StoreProxy, Server, int]]:
    server = Server(lambda received: OK if received.endswith(b"hello") else b"")
    proxy = StoreProxy(server.start(), Random(1))
    yield proxy, server, await proxy.open(NODE)
    await proxy.close()
    server.stop()


@pytest.mark.parametrize(
    ("kind", "response", "arrives"),
    [
        (Kind.STORE_LATENCY, OK, PUT),
        (Kind.STORE_SLOW_DOWN, b"HTTP/1.1 503 Slow Down", b""),
        (Kind.STORE_LOSE_RESPONSE, b"", PUT),
        (Kind.STORE_CUT_RESPONSE, OK[:-1], PUT),
        (Kind.STORE_CUT_REQUEST, b"", PUT[:-1]),
    ],
)
async def test_each_store_fault_has_its_effect(
    store: tuple[StoreProxy, Server, int], kind: Kind, response: bytes, arrives: bytes
) -> None:
    proxy, server, port = store
    proxy.begin(fault(kind))
    message = await requested(port)
    if kind is Kind.STORE_CUT_RESPONSE:
        assert response.startswith(message)
    else:
        assert message.startswith(response)
        assert bool(message) == bool(response)
    if kind is Kind.STORE_CUT_REQUEST:
        assert arrives.startswith(server.received)
    else:
        assert server.received == arrives
    assert proxy.hit_count == 1


async def test_request_in_a_black_hole_arrives_after_its_sender_disconnects(
    store: tuple[StoreProxy, Server, int],
) -> None:
    proxy, server, port = store
    hole = fault(Kind.STORE_HOLE, late=True)
    proxy.begin(hole)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PUT)
    await until(lambda: proxy.hit_count == 1)
    writer.close()
    await writer.wait_closed()
    assert server.received == b""
    proxy.end(hole)
    await until(lambda: server.received == PUT)


async def test_store_fault_of_one_process_does_not_affect_others(
    store: tuple[StoreProxy, Server, int],
) -> None:
    proxy, _, port = store
    proxy.begin(Fault(Kind.STORE_SLOW_DOWN, ("broker 1",), 0, 1))
    assert await requested(port) == OK
