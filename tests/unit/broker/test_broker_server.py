"""The listener with honest, greedy and hostile clients, and a dispatcher controlled by the test: no
client prevents others from being served.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, cast

import pytest
import uvloop
from structlog.testing import capture_logs

from penstock.base.listeners import SecurityProtocol
from penstock.base.open_files import raise_open_files_limit
from penstock.base.principal import USER, Principal
from penstock.broker.config import BrokerConfig
from penstock.broker.network.client_connection import BURST_BYTES_MAX, Connection
from penstock.broker.network.connection import RECEIVE_BYTES
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.request import ConnectionInfo, Respond, Response
from penstock.broker.network.server import PortTaken, Server
from penstock.protocol.errors import Truncated
from tests.support.listener import Client, connect, framed
from tests.support.waiting import PATIENCE_S, until

SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")


class SteeredDispatcher:
    """Frames contain commands: e echo, b respond with a megabyte, p park until the test responds, c
    coroutine that waits for `release`, u set the principal and echo, x reject.
    """

    def __init__(self) -> None:
        self.parked: list[tuple[bytes, Respond]] = []
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.seen = 0
        self.arrived = asyncio.Event()

    def is_blocked(self, frame: bytearray) -> bool:
        return not self.room.is_set() and frame.startswith(b"p")

    async def wait_unblocked(self) -> None:
        await self.room.wait()

    def start(
        self, connection: ConnectionInfo, frame: bytearray, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        self.seen += 1
        self.arrived.set()
        match chr(frame[0]) if frame else "":
            case "e":
                respond([prefix(len(frame)), memoryview(frame)])
            case "u":
                assert isinstance(connection, Connection)
                connection.authenticated(Principal(USER, bytes(frame[2:]).decode()))
                respond([prefix(len(frame)), memoryview(frame)])
            case "b":
                respond(framed(bytes(1_000_000)))
            case "p":
                self.parked.append((bytes(frame), respond))
            case "c":
                return self.later(bytes(frame))
            case "x":
                raise CannotRespond("refused by test")
            case _:
                raise Truncated(4, 0)
        return None

    async def later(self, frame: bytes) -> Response:
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return prefix(len(frame)) + frame

    async def until_seen(self, count: int) -> None:
        while self.seen < count:
            self.arrived.clear()
            await self.arrived.wait()


def prefix(size: int) -> bytes:
    return struct.pack(">i", size)


class Fixture:
    def __init__(self) -> None:
        self.dispatcher = SteeredDispatcher()
        self.clients: list[Client] = []
        self.server: Server

    async def start(self, **settings: Any) -> None:
        self.server = Server(
            BrokerConfig(listeners=("127.0.0.1:0",), **settings), sweep_interval_s=0.02
        )
        await self.server.bind()
        await self.server.serve(self.dispatcher)

    async def connect(self) -> Client:
        client = await connect(self.server.port)
        self.clients.append(client)
        return client

    async def connect_as(self, name: str) -> Client:
        client, frame = await self.connect(), b"u " + name.encode()
        client.send(frame)
        assert await client.receive() == frame
        return client

    async def stop(self) -> None:
        for client in self.clients:
            client.writer.close()
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()
        await self.server.close()

    async def check_others_are_served(self) -> None:
        client = await self.connect()
        client.send(b"e alive")
        assert await client.receive() == b"e alive"


@pytest.fixture
async def fixture() -> AsyncIterator[Fixture]:
    fixture = Fixture()
    yield fixture
    await fixture.stop()


async def test_pipelined_requests_get_responses_in_order(fixture: Fixture) -> None:
    await fixture.start()
    client = await fixture.connect()
    client.send(b"p0", b"p1", b"e2")
    await fixture.dispatcher.until_seen(3)
    for name, respond in reversed(fixture.dispatcher.parked):
        respond(framed(name))
    assert [await client.receive() for _ in range(3)] == [b"p0", b"p1", b"e2"]


async def exchange_frames_of_all_sizes() -> None:
    fixture = Fixture()
    await fixture.start()
    client = await fixture.connect()
    payloads = [
        b"e" + bytes([size % 251]) * size for size in (3, 5_000_000, 0, 65_530, 70_000, 1, 300_000)
    ]
    client.send(*payloads)
    for payload in payloads:
        assert await client.receive() == payload
    await fixture.stop()


@pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_frames_of_all_sizes_arrive_unchanged_on_both_event_loops(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Each event loop fills our buffers in its own way."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(exchange_frames_of_all_sizes())


class TurnMeter(SteeredDispatcher):
    """Measures the bytes received in one iteration of the event loop."""

    turn_bytes = turn_bytes_max = 0

    def start(
        self, connection: ConnectionInfo, frame: bytearray, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        if not self.turn_bytes:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self.turn_bytes += len(frame)
        self.seen += 1
        self.arrived.set()
        respond(None)
        return None

    def _end_turn(self) -> None:
        self.turn_bytes_max = max(self.turn_bytes_max, self.turn_bytes)
        self.turn_bytes = 0


async def send_without_pause(frame: bytes, count: int) -> TurnMeter:
    fixture, meter = Fixture(), TurnMeter()
    fixture.dispatcher = meter
    await fixture.start()
    with socket.create_connection(("127.0.0.1", fixture.server.port)) as client:
        await asyncio.to_thread(client.sendall, framed(*[frame] * count))
        async with asyncio.timeout(PATIENCE_S):
            await meter.until_seen(count)
    await fixture.stop()
    return meter


@pytest.mark.parametrize("frame_bytes", [10_000, 1_000_000])
def test_a_client_that_sends_without_pause_does_not_starve_others(frame_bytes: int) -> None:
    """libuv would read its connection up to 32 times in a row."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        meter = runner.run(send_without_pause(bytes(frame_bytes), 40_000_000 // frame_bytes))
    assert meter.turn_bytes_max <= BURST_BYTES_MAX + RECEIVE_BYTES + frame_bytes


async def test_a_request_without_response_does_not_block_the_next(fixture: Fixture) -> None:
    await fixture.start()
    client = await fixture.connect()
    client.send(b"p0", b"e1")
    await fixture.dispatcher.until_seen(2)
    fixture.dispatcher.parked[0][1](None)
    assert await client.receive() == b"e1"


async def test_a_waiting_coroutine_delays_only_its_own_connection(fixture: Fixture) -> None:
    await fixture.start()
    client = await fixture.connect()
    client.send(b"c0", b"e1")
    await fixture.dispatcher.until_seen(1)
    await fixture.check_others_are_served()
    assert fixture.dispatcher.seen == 2, "the request after the parked one has not started"
    fixture.dispatcher.release.set()
    assert [await client.receive(), await client.receive()] == [b"c0", b"e1"]


async def test_closing_a_connection_cancels_its_pending_requests(fixture: Fixture) -> None:
    await fixture.start()
    client = await fixture.connect()
    client.send(b"p0", b"c1")
    await fixture.dispatcher.until_seen(2)
    client.writer.close()
    await client.until_closed()
    await fixture.dispatcher.cancelled.wait()
    assert fixture.server.memory.buffered_bytes == 0
    fixture.dispatcher.parked[0][1](framed(b"late"))  # a durable append whose client disconnected


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        prefix(0),
        framed(b"t"),
        framed(b"x"),
        prefix(200_000_000),
        bytes(65_536),
    ],
    ids=["http", "negative", "empty", "truncated", "refused", "huge", "zeros"],
)
async def test_malformed_frames_close_only_their_connection(fixture: Fixture, data: bytes) -> None:
    await fixture.start()
    client = await fixture.connect()
    client.writer.write(data)
    await client.until_closed()
    await fixture.check_others_are_served()


async def test_a_client_may_disconnect_within_a_frame(fixture: Fixture) -> None:
    await fixture.start()
    client = await fixture.connect()
    client.writer.write(prefix(1_000) + b"half")
    client.writer.close()
    await client.until_closed()
    await fixture.check_others_are_served()


async def test_requests_in_flight_are_limited(fixture: Fixture) -> None:
    await fixture.start(requests_in_flight_max=4)
    client = await fixture.connect()
    client.send(*[b"p%d" % index for index in range(10)])
    await fixture.dispatcher.until_seen(4)
    await fixture.check_others_are_served()
    assert len(fixture.dispatcher.parked) == 4
    for index in range(10):
        await fixture.dispatcher.until_seen(index + 2)
        fixture.dispatcher.parked[index][1](framed(b"r%d" % index))
    assert [await client.receive() for _ in range(10)] == [b"r%d" % index for index in range(10)]


async def test_a_client_that_does_not_read_blocks_only_itself(fixture: Fixture) -> None:
    await fixture.start(response_bytes_max=100_000)
    client = await fixture.connect()
    client.send(*[b"b"] * 60)
    await fixture.dispatcher.until_seen(1)
    await fixture.check_others_are_served()
    assert fixture.dispatcher.seen < 60, "what the socket does not take is not made"
    for _ in range(60):
        assert len(await client.receive()) == 1_000_000


async def test_full_storage_blocks_only_producers(fixture: Fixture) -> None:
    await fixture.start()
    fixture.dispatcher.room.clear()
    producer = await fixture.connect()
    producer.send(b"p0", b"e1")
    await fixture.check_others_are_served()
    assert fixture.dispatcher.parked == []
    fixture.dispatcher.room.set()
    await fixture.dispatcher.until_seen(3)
    fixture.dispatcher.parked[0][1](framed(b"done"))
    assert [await producer.receive(), await producer.receive()] == [b"done", b"e1"]


async def test_shared_memory_limit_pauses_and_resumes_reading(fixture: Fixture) -> None:
    await fixture.start(request_bytes_max=100_000, buffered_request_bytes_max=300_000)
    clients = [await fixture.connect() for _ in range(6)]
    for client in clients:
        client.send(b"p" + bytes(90_000))
    await fixture.dispatcher.until_seen(2)
    responded_count = 0
    while responded_count < 6:
        await fixture.dispatcher.until_seen(responded_count + 1)
        assert fixture.server.memory.buffered_bytes <= 600_000
        fixture.dispatcher.parked[responded_count][1](framed(b"ok"))
        responded_count += 1
    for client in clients:
        assert await client.receive() == b"ok"
    assert fixture.server.memory.buffered_bytes == 0


async def test_a_principal_cannot_use_up_the_request_memory(fixture: Fixture) -> None:
    await fixture.start(request_bytes_max=100_000, buffered_request_bytes_max=600_000)
    greedy, modest = await fixture.connect_as("greedy"), await fixture.connect_as("modest")
    greedy.send(*[b"p" + bytes(90_000)] * 10)
    await fixture.dispatcher.until_seen(6)
    # Four requests need more than half of the memory: the broker stops reading the others, and the
    # principal waits.
    for _ in range(2):
        modest.send(b"e" + bytes(90_000))
        assert await modest.receive() == b"e" + bytes(90_000)
    assert len(fixture.dispatcher.parked) == 4
    for at in range(10):
        while len(fixture.dispatcher.parked) <= at:
            await fixture.dispatcher.until_seen(fixture.dispatcher.seen + 1)
        fixture.dispatcher.parked[at][1](framed(b"ok"))
        assert await greedy.receive() == b"ok"
    assert fixture.server.memory.buffered_bytes == 0


async def test_connections_of_a_principal_with_too_many_partial_requests_are_closed(
    fixture: Fixture,
) -> None:
    """Partially received requests may use up to twice the limit in total."""
    await fixture.start(
        request_bytes_max=100_000, buffered_request_bytes_max=400_000, buffered_principal_percent=25
    )
    modest = await fixture.connect_as("modest")
    greedy = [await fixture.connect_as("greedy") for _ in range(8)]
    for client in greedy:
        client.writer.write(prefix(90_000) + bytes(80_000))
    await until(lambda: fixture.server.closed_count >= 6)
    assert fixture.server.memory.buffered_bytes <= 200_000
    for _ in range(2):
        modest.send(b"e" + bytes(90_000))
        assert await modest.receive() == b"e" + bytes(90_000)


async def test_the_connection_of_a_slow_sender_is_closed(fixture: Fixture) -> None:
    await fixture.start(request_stall_ms=50)
    client = await fixture.connect()
    client.writer.write(prefix(100) + b"e")
    await client.until_closed()
    await fixture.check_others_are_served()


async def test_an_idle_connection_is_closed_unless_it_waits_for_a_response(
    fixture: Fixture,
) -> None:
    await fixture.start(connections_idle_ms=1_000)
    waiting = await fixture.connect()
    waiting.send(b"c0")
    await fixture.dispatcher.until_seen(1)
    with capture_logs() as logs:
        idle = await fixture.connect()
        await idle.until_closed()
    assert [line["log_level"] for line in logs] == ["info"], "brokers watch each other idly"
    fixture.dispatcher.release.set()
    assert await waiting.receive() == b"c0"


@pytest.mark.skipif(
    not SOMAXCONN.exists() or int(SOMAXCONN.read_text()) < 4_096,
    reason="the system allows a shorter backlog",
)
async def test_many_clients_may_connect_at_the_same_time(fixture: Fixture) -> None:
    """Accepting is paused. A client that finds the backlog full retries after a second."""
    raise_open_files_limit()
    await fixture.start()
    with contextlib.ExitStack() as stack:
        for _ in range(1_500):
            address = ("127.0.0.1", fixture.server.port)
            stack.enter_context(socket.create_connection(address, timeout=0.5))
    await fixture.check_others_are_served()


async def test_a_port_in_use_is_named_in_the_error(fixture: Fixture) -> None:
    await fixture.start()
    other = Server(BrokerConfig(listeners=(f"127.0.0.1:{fixture.server.port}",)))
    with pytest.raises(PortTaken, match=str(fixture.server.port)):
        await other.bind()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_port_taken_between_bind_and_listen_is_named_in_the_error(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The operating system allows both to bind, but only one to listen. uvloop reports no error."""

    async def start_two() -> None:
        first, dispatcher = Server(BrokerConfig(listeners=("127.0.0.1:0",))), cast("Any", None)
        port = await first.bind()
        second = Server(BrokerConfig(listeners=(f"127.0.0.1:{port}",)))
        await second.bind()
        await first.serve(dispatcher)
        with pytest.raises(PortTaken, match=str(port)):
            await second.serve(dispatcher)
        for server in (first, second):
            await server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(start_two())


async def test_an_error_while_sending_responses_does_not_affect_other_connections() -> None:
    loop, sent, reported = asyncio.get_running_loop(), asyncio.Event(), list[Any]()

    class Broken:
        def flush(self) -> None:
            raise RuntimeError("broken")

    class Sound:
        def flush(self) -> None:
            sent.set()

    server: Any = Server(BrokerConfig(listeners=("127.0.0.1:0",)))
    loop.set_exception_handler(lambda _, context: reported.append(context))
    server.flush_soon(Broken())
    server.flush_soon(Sound())
    async with asyncio.timeout(PATIENCE_S):
        await sent.wait()
    assert [str(context["exception"]) for context in reported] == ["broken"]


async def test_a_connection_accepted_just_before_shutdown_is_closed() -> None:
    server: Any = Server(BrokerConfig(listeners=("127.0.0.1:0",)))
    await server.close()
    ours, theirs = socket.socketpair()
    with theirs:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: server._connection("PLAINTEXT", SecurityProtocol.PLAINTEXT), ours
        )
        theirs.setblocking(False)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""
