"""PeerWatch: which other brokers count as dead, over real connections."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from penstock.base.ids import NodeEpoch, NodeId
from penstock.broker.network import peer_watch
from penstock.broker.network.peer_watch import PeerWatch
from penstock.broker.network.peers import PeerConnections
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import NodeRecord
from penstock.stream.ports import BrokerIncarnation
from tests.support.stream_server import StreamServer
from tests.support.waiting import until

ME, OTHER = NodeId(1), BrokerIncarnation(NodeId(2), NodeEpoch(5))
EVERYTHING = MetadataDelta(everything=True)


class Peer:
    """A broker that only listens on a port."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self._server = StreamServer(self._serve)

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        self._server.open()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        await reader.read()

    def drop(self) -> None:
        while self.connections:
            self.connections.pop().transport.abort()

    def die(self) -> None:
        self._server.close()
        self.drop()

    def record(self, *, fenced: bool = False, epoch: int = OTHER.node_epoch) -> NodeRecord:
        host, incarnation = "127.0.0.1", UUID(int=epoch)
        return NodeRecord(
            OTHER.node_id, NodeEpoch(epoch), incarnation, host, self.port, "m", None, fenced
        )


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Peer, PeerWatch, MetadataImage, list[bool]]]:
    peer, image, changes = Peer(), MetadataImage(), list[bool]()
    peer.start()
    image.apply_all([peer.record()])
    watch = PeerWatch(
        ME, PeerConnections(lambda: image), lambda which: changes.append(which in watch.gone)
    )
    watch.on_batch(EVERYTHING, image)
    try:
        await until(lambda: peer.connections)
        yield peer, watch, image, changes
    finally:
        await watch.close()
        peer.die()


async def test_a_dead_broker_counts_as_dead_until_it_returns() -> None:
    async with watched() as (peer, watch, _, changes):
        assert not watch.gone
        peer.die()
        await until(lambda: OTHER in watch.gone)
        peer.start()
        await until(lambda: not watch.gone)
        assert changes == [True, False]


async def test_a_closed_connection_to_a_live_broker_does_not_make_it_dead() -> None:
    async with watched() as (peer, watch, _, changes):
        peer.drop()
        await until(lambda: peer.connections)
        assert not watch.gone
        assert changes == []


async def test_a_listener_that_closes_after_its_connections_is_detected() -> None:
    async with watched() as (peer, watch, _, _):
        peer.drop()
        await until(lambda: peer.connections)  # the address still accepts connections
        peer.die()
        await until(lambda: OTHER in watch.gone)


async def test_a_broker_is_in_doubt_from_a_broken_connection_until_its_listener_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_watch, "DOUBT_S", 60.0)
    async with watched() as (peer, watch, _, _):
        assert not watch.is_in_doubt()
        peer.drop()
        await until(watch.is_in_doubt)
        await until(lambda: peer.connections)  # the address still accepts connections
        certain = asyncio.ensure_future(watch.until_certain())
        await asyncio.sleep(0)
        assert not certain.done()
        peer.die()
        await certain
        assert OTHER in watch.gone


async def test_a_broker_is_in_doubt_before_the_event_loop_handles_the_closed_connection() -> None:
    async with watched() as (peer, watch, _, _):
        await until(lambda: watch._peers._peers)
        sockets = [writer.get_extra_info("socket") for writer in peer.connections]
        for each in sockets:
            each.shutdown(socket.SHUT_RDWR)
        assert watch.is_in_doubt()  # in the same iteration of the event loop


async def test_a_live_broker_is_in_doubt_only_briefly() -> None:
    async with watched() as (peer, watch, _, changes):
        peer.drop()
        while not watch.is_in_doubt():  # noqa: ASYNC110 - for 50 ms, which `until` could miss
            await asyncio.sleep(0)
        await watch.until_certain()
        await until(lambda: not watch.is_in_doubt())
        assert changes == []


async def test_a_broker_counts_as_dead_for_a_limited_time() -> None:
    limit_s, peer_watch.GONE_MAX_S = peer_watch.GONE_MAX_S, 0.3
    try:
        async with watched() as (peer, watch, _, changes):
            peer.die()
            await until(lambda: changes == [True, False])
            assert not watch.gone
    finally:
        peer_watch.GONE_MAX_S = limit_s


async def test_fenced_brokers_and_new_incarnations_are_taken_from_the_image() -> None:
    async with watched() as (peer, watch, image, _):
        peer.die()
        await until(lambda: OTHER in watch.gone)
        image.apply_all([peer.record(fenced=True)])
        watch.on_batch(EVERYTHING, image)
        assert not watch.gone
        peer.start()
        image.apply_all([peer.record(epoch=6)])
        watch.on_batch(EVERYTHING, image)
        await until(lambda: peer.connections)
        assert not watch.gone


async def test_a_broker_that_was_never_reached_does_not_count_as_dead() -> None:
    peer, image = Peer(), MetadataImage()
    peer.start()
    peer.die()
    image.apply_all([peer.record()])
    peers = PeerConnections(lambda: image)
    watch = PeerWatch(ME, peers, lambda _: None)
    watch.on_batch(EVERYTHING, image)
    try:
        await until(lambda: peers.refuses(OTHER.node_id))
        assert not watch.gone
    finally:
        await watch.close()
