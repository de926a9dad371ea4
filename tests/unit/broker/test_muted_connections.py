"""Connections of throttled clients: the broker does not read from them until the throttle time is
over. The test controls the time.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from penstock.broker.config import BrokerConfig
from penstock.broker.network.request import ConnectionInfo, Respond, Response
from penstock.broker.network.server import Server
from tests.support.listener import Client, Echo, ManualTimer, connect, framed
from tests.support.waiting import until

BACKLOG = 8 << 20
"""More bytes than the socket buffers hold."""


class MutingDispatcher(Echo):
    """Responds with the frame. A frame `m MILLISECONDS` mutes the connection first; the test
    responds to `l`.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.late: list[Respond] = []
        self.connection: ConnectionInfo | None = None

    def start(
        self, connection: ConnectionInfo, frame: bytearray, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        self.frames.append(bytes(frame))
        self.connection = connection
        if frame.startswith(b"m"):
            connection.mute(int(frame[1:]))
        if frame.startswith(b"l"):
            self.late.append(respond)
        else:
            respond(framed(bytes(frame)))
        return None


class Fixture:
    def __init__(self) -> None:
        self.dispatcher = MutingDispatcher()
        self.timers: list[ManualTimer] = []
        self.server = Server(BrokerConfig(listeners=("127.0.0.1:0",)), call_later=self.call_later)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> ManualTimer:
        self.timers.append(ManualTimer(self.server.loop.time() + delay_s, call))
        return self.timers[-1]

    async def send_request(self, client: Client, frame: bytes) -> None:
        client.send(frame)
        assert await client.receive() == frame


@pytest.fixture
async def fixture() -> AsyncIterator[Fixture]:
    fixture = Fixture()
    await fixture.server.bind()
    await fixture.server.serve(fixture.dispatcher)
    yield fixture
    await fixture.server.close()


@contextlib.asynccontextmanager
async def connected(fixture: Fixture) -> AsyncIterator[Client]:
    client = await connect(fixture.server.port)
    yield client
    client.writer.close()


async def test_the_next_request_is_not_read_before_the_throttle_time_is_over(
    fixture: Fixture,
) -> None:
    """The response arrives at once. The client cannot send more than fits into the socket buffers,
    so the broker has not read it.
    """
    async with connected(fixture) as client, connected(fixture) as other:
        await fixture.send_request(client, b"m5000")
        client.send(bytes(BACKLOG))
        await fixture.send_request(other, b"another client is served")
        received = fixture.server.received_bytes
        for at in range(10):
            await fixture.send_request(other, b"%d" % at)
        assert fixture.server.received_bytes - received == 10 * 5
        assert client.writer.transport.get_write_buffer_size() > 0
        assert fixture.dispatcher.frames[-1] == b"9"
        assert len(fixture.server.muted) == 1
        fixture.timers[0].fire()
        assert len(await client.receive()) == BACKLOG
        assert not fixture.server.muted


async def test_requests_that_have_already_arrived_wait(fixture: Fixture) -> None:
    async with connected(fixture) as client, connected(fixture) as other:
        client.send(b"m1", b"second", b"third")
        assert await client.receive() == b"m1"
        await fixture.send_request(other, b"other")
        assert fixture.dispatcher.frames == [b"m1", b"other"]
        fixture.timers[0].fire()
        assert [await client.receive(), await client.receive()] == [b"second", b"third"]


async def test_responses_to_earlier_requests_are_sent(fixture: Fixture) -> None:
    async with connected(fixture) as client:
        client.send(b"l", b"m9")
        await until(lambda: len(fixture.dispatcher.frames) == 2)
        assert fixture.server.muted
        (respond,) = fixture.dispatcher.late
        respond(framed(b"late"))
        assert [await client.receive(), await client.receive()] == [b"late", b"m9"]


async def test_the_longest_throttle_time_applies(fixture: Fixture) -> None:
    async with connected(fixture) as client:
        client.send(b"l", b"l")
        await until(lambda: len(fixture.dispatcher.late) == 2)
        connection = fixture.dispatcher.connection
        assert connection is not None
        connection.mute(5_000)
        connection.mute(1_000)
        connection.mute(9_000)
        assert [timer.is_cancelled for timer in fixture.timers] == [True, False]


async def test_a_muted_connection_does_not_time_out_and_may_close(fixture: Fixture) -> None:
    async with connected(fixture) as client:
        await fixture.send_request(client, b"m1000")
        connection = next(iter(fixture.server.muted))
        assert connection.expired(fixture.server.loop.time() + 3_600) is None
        client.writer.close()
        # The broker notices the closed connection when it reads again.
        fixture.timers[0].fire()
        await until(lambda: not fixture.server.connection_count)
        assert not fixture.server.muted
