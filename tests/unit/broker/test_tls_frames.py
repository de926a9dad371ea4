"""Frames over TLS with real sockets: split at any byte, sent slowly, or truncated."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from penstock.broker.config import BrokerConfig
from penstock.broker.network import closing_order
from penstock.broker.network.client_connection import Connection
from penstock.broker.network.server import Server
from penstock.broker.network.tls_channel import (
    FEED_BYTES_MAX,
    RECORD_BYTES_MAX,
    TlsBroken,
    TlsChannel,
)
from penstock.broker.network.wake_limit import WAKE_BYTES
from penstock.broker.security.access import ClientAccess
from tests.support.listener import framed
from tests.support.secure_cluster import SecureFiles
from tests.support.waiting import PATIENCE_S, until
from tests.unit.broker.test_broker_server import SteeredDispatcher

FRAME = framed(b"e" + bytes(3 * WAKE_BYTES + 777))
T = TypeVar("T")


class Peer:
    """A client that encrypts, and lets the test send the encrypted bytes."""

    def __init__(self, files: SecureFiles) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(files.truststore))
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def connect(self, port: int) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        await self.step(self.tls.do_handshake)
        self.writer.write(self.outgoing.read())

    def encrypted(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    async def receive(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += await self.step(lambda: self.tls.read(1 << 16))
        return found

    async def step(self, step: Callable[[], T]) -> T:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                if self.outgoing.pending:
                    self.writer.write(self.outgoing.read())
                async with asyncio.timeout(PATIENCE_S):
                    data = await self.reader.read(1 << 16)
                assert data, "the server closed the connection"
                self.incoming.write(data)


class Listener:
    def __init__(self, directory: Path) -> None:
        self.files = SecureFiles(directory / "security")
        self.peers: list[Peer] = []
        self.server: Server

    async def start(self, sweep_interval_s: float = 0.02, **settings: Any) -> None:
        access = ClientAccess(self.files.config())
        await access.start()
        config = BrokerConfig(listeners=("SSL://127.0.0.1:0",), **settings)
        self.server = Server(config, access, sweep_interval_s=sweep_interval_s)
        await self.server.bind()
        await self.server.serve(SteeredDispatcher())

    async def connect(self) -> Peer:
        peer = Peer(self.files)
        await peer.connect(self.server.port)
        self.peers.append(peer)
        return peer

    async def stop(self) -> None:
        for peer in self.peers:
            peer.writer.close()
        await self.server.close()
        await self.server.access.close()


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    listener = Listener(tmp_path)
    yield listener
    await listener.stop()


async def send_frames_in_two_pieces(listener: Listener) -> None:
    """Send each frame in two pieces.

    The second piece is the end of the last TLS record. It usually arrives after the server has read
    all of the first piece; if some of that is still in the kernel, the frame arrives as well.
    """
    await listener.start(sweep_interval_s=3_600)
    peer = await listener.connect()
    for left_bytes in (1, 30, 100):
        data, before = peer.encrypted(FRAME), listener.server.received_bytes
        peer.writer.write(data[:-left_bytes])
        whole = before + len(FRAME) // RECORD_BYTES_MAX * RECORD_BYTES_MAX
        with suppress(TimeoutError):
            await until(lambda: listener.server.received_bytes >= whole, 2)  # noqa: B023
        peer.writer.write(data[-left_bytes:])
        assert await peer.receive(len(FRAME)) == FRAME
    await listener.stop()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_frames_arrive_wherever_they_are_split(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The server does not wait for bytes that TLS has already consumed."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(send_frames_in_two_pieces(Listener(tmp_path)))


async def test_tls_is_fed_small_pieces(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL keeps a buffer of the largest size ever fed into a connection."""
    feed, sizes = TlsChannel.feed, list[int]()

    def noted(channel: TlsChannel, data: memoryview) -> None:
        sizes.append(len(data))
        feed(channel, data)

    monkeypatch.setattr(TlsChannel, "feed", noted)
    await listener.start()
    peer = await listener.connect()
    for _ in range(3):
        peer.writer.write(peer.encrypted(FRAME))
        assert await peer.receive(len(FRAME)) == FRAME
    assert sum(sizes) > 3 * len(FRAME)
    assert max(sizes) <= FEED_BYTES_MAX
    stranger = await asyncio.open_connection("127.0.0.1", listener.server.port)
    sizes.clear()
    stranger[1].write(b"\x16\x03\x01\x40\x00" + bytes(8 * FEED_BYTES_MAX))
    with suppress(ConnectionError):
        while await stranger[0].read(1 << 16):
            pass
    stranger[1].close()
    assert sizes
    assert max(sizes) <= FEED_BYTES_MAX


async def test_a_slow_sender_does_not_count_as_stalled(listener: Listener) -> None:
    """It sends fewer bytes than wake the server."""
    await listener.start(request_stall_ms=20_000)
    peer = await listener.connect()
    data = peer.encrypted(FRAME)
    peer.writer.write(data[:50_000])
    await until(lambda: listener.server.received_bytes > 30_000)
    peer.writer.write(data[50_000:100_000])
    await until(lambda: listener.server.received_bytes > 80_000)
    peer.writer.write(data[100_000:])
    assert await peer.receive(len(FRAME)) == FRAME


async def test_the_connection_of_a_stalled_sender_is_closed(listener: Listener) -> None:
    await listener.start(request_stall_ms=100)
    peer = await listener.connect()
    peer.writer.write(peer.encrypted(FRAME)[:50_000])
    async with asyncio.timeout(PATIENCE_S):
        while await peer.reader.read(1 << 16):
            pass
    assert listener.server.closed_count == 1


async def test_handshakes_are_interleaved(listener: Listener) -> None:
    """Many clients connect at the same time: only one handshake makes a step per iteration of the
    event loop, and all succeed.
    """
    await listener.start()
    loop, turn, steps = asyncio.get_running_loop(), 0, list[int]()
    is_counting = True

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        if is_counting:
            loop.call_soon(count_turns)

    take = Connection.__dict__["_take_tls"]

    def noted(connection: Connection, *data: memoryview) -> None:
        if not connection._tls.is_established:  # type: ignore[union-attr]
            steps.append(turn)
        take(connection, *data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_take_tls", noted)
        count_turns()
        peers = await asyncio.gather(*(listener.connect() for _ in range(30)))
        for peer in peers:
            peer.writer.write(peer.encrypted(framed(b"e hello")))
            assert await peer.receive(11) == framed(b"e hello")
        is_counting = False
    assert len(steps) >= 60
    # Iterations are counted at a different point than the steps, so two steps may get the same
    # number.
    assert max(Counter(steps).values()) <= 2
    assert len(listener.server.handshakes) == 0


async def test_clients_that_disconnect_together_are_closed_one_per_iteration(
    listener: Listener,
) -> None:
    """When a process exits, all its connections close. Every second client ends TLS first."""
    await listener.start()
    turn, removed = 0, list[int]()
    server, count_max = listener.server, 5
    count = 8 * count_max
    peers = await asyncio.gather(*(listener.connect() for _ in range(count)))
    await until(lambda: server.connection_count == count and not server.unauthenticated_count)
    remove = server.remove

    def noted(connection: Connection) -> None:
        removed.append(turn)
        remove(connection)

    def leave() -> None:
        for number, peer in enumerate(peers):
            if number % 2:
                with suppress(ssl.SSLWantReadError):
                    peer.tls.unwrap()
                peer.writer.write(peer.outgoing.read())
            peer.writer.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing_order, "COUNT_MAX", count_max)
        patch.setattr(server, "remove", noted)
        leave()
        while server.connection_count:
            turn += 1
            await asyncio.sleep(0)
    assert len(removed) == count
    # Iterations are counted at a different point than the closings, so two closings may get the
    # same number.
    assert max(Counter(removed).values()) <= 2 * count_max


def test_data_before_the_end_or_damage_is_delivered(tmp_path: Path) -> None:
    """TLS records received in one call are delivered before the damage or the end after them is
    reported.
    """
    files = SecureFiles(tmp_path)
    bad_record = "bad record|record layer failure"  # in OpenSSL 3.0 and 3.5
    for damage, reason in ((b"", "^$"), (b"\x17\x03\x03\x00\x20" + bytes(32), bad_record)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.keystore)
        channel, peer = TlsChannel(context), Peer(files)
        while not channel.is_established:
            with suppress(ssl.SSLWantReadError):
                peer.tls.do_handshake()
            channel.feed(memoryview(peer.outgoing.read()))
            channel.shake_hands()
            peer.incoming.write(channel.outgoing())
        data = peer.encrypted(bytes(40_000))
        if not damage:
            with pytest.raises(ssl.SSLError):
                peer.tls.unwrap()
        channel.feed(memoryview(data + (damage or peer.outgoing.read())))
        buffer = memoryview(bytearray(100_000))
        assert channel.read_into(buffer) == 40_000
        for _ in range(2):
            with pytest.raises(TlsBroken, match=reason):
                channel.read_into(buffer)
