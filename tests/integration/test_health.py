"""Health over HTTP while a broker loses its dependencies. Requests for it do not slow the broker
down.
"""

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.broker.health import BrokerHealth, StoreProbe
from penstock.broker.node import Broker
from penstock.deploy.errors import PortTaken
from penstock.deploy.node import health
from penstock.deploy.node.health import HttpServer, routes_of, serve_at
from penstock.objectstore.errors import Unavailable
from tests.support.cluster import Cluster
from tests.support.waiting import until


async def send_request(port: int, request: str) -> tuple[int, str]:
    """Return status and body; 0 if the connection was closed without a response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.encode())
        response = (await reader.read()).decode()
    except ConnectionError:
        response = ""
    finally:
        writer.close()
    head, _, body = response.partition("\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


async def get(port: int, path: str) -> tuple[int, str]:
    return await send_request(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")


class Store:
    """A store that fails on demand and counts requests."""

    def __init__(self) -> None:
        self.requested = 0
        self.refuses = False

    async def put(self) -> None:
        self.requested += 1
        if self.refuses:
            raise Unavailable("put", "probe", "no route to the store")


def healthy(broker: Broker, store: Store) -> BrokerHealth:
    it = BrokerHealth()
    it.started(broker, StoreProbe(store.put))
    return it


async def test_a_broker_is_ready_until_it_loses_its_session(tmp_path: Path) -> None:
    async with (
        Cluster(
            tmp_path,
            controller_settings={"session_timeout_ms": 2_000, "heartbeat_interval_ms": 300},
        ) as cluster,
        serve_at("127.0.0.1", 0)(healthy(cluster.broker, Store())) as port,
    ):
        assert isinstance(port, int)
        for path in ("/startz", "/livez", "/readyz", "/readyz?verbose"):
            assert await get(port, path) == (200, "ok\n")
        await cluster.stop_controller()
        await until(lambda: not cluster.broker.follower.can_write())
        status, reason = await get(port, "/readyz")
        assert status == 503
        assert "session" in reason
        assert await get(port, "/livez") == (200, "ok\n"), (
            "it waits for a controller: a new process could do no more"
        )


async def test_the_store_is_queried_once_for_many_questions_and_its_refusal_is_reported(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        store = Store()
        it = healthy(cluster.broker, store)
        responses = await asyncio.gather(*(it.not_ready() for _ in range(20)))
        assert responses == [[]] * 20
        assert store.requested == 1
        store, refused = Store(), BrokerHealth()
        store.refuses = True
        refused.started(cluster.broker, StoreProbe(store.put))
        assert "no route to the store" in (await refused.not_ready())[0]
        store.refuses = False
        assert await refused.not_ready() == [], "a refusal is not remembered"


async def test_one_that_leaves_wants_no_new_clients_but_lives(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        it = healthy(cluster.broker, Store())
        it.stopping()
        assert "stopping" in (await it.not_ready())[0]
        assert it.not_alive() == []


async def test_before_there_is_a_broker() -> None:
    it = BrokerHealth()
    assert it.not_started()
    assert it.not_alive() == []
    assert await it.not_ready() == it.not_started()


async def test_malformed_requests_get_no_further() -> None:
    server = HttpServer(routes_of(BrokerHealth()))
    port = await server.start("127.0.0.1", 0)
    try:
        assert await get(port, "/nothing") == (404, "/startz\n/livez\n/readyz\n")
        assert (await send_request(port, "POST /livez HTTP/1.1\r\n\r\n"))[0] == 405
        assert (await send_request(port, "\r\n\r\n"))[0] == 400
        assert (await send_request(port, "HEAD /livez HTTP/1.1\r\n\r\n")) == (200, "")
        assert (await send_request(port, "GET /livez" + "x" * health.REQUEST_BYTES_MAX * 2))[0] == 0
        assert (await get(port, "/livez"))[0] == 200
    finally:
        await server.stop()


@pytest.mark.parametrize("sent", ["", "GET /livez HTTP/1.1\r\n"])
async def test_probes_get_through_a_flood(sent: str) -> None:
    """One address opens more connections than there may be, and others open some."""
    server = HttpServer(routes_of(BrokerHealth()))
    port = await server.start("127.0.0.1", 0)
    counts = {"127.0.0.2": 2 * health.CONNECTIONS_MAX}
    counts |= {f"127.0.1.{number}": health.CONNECTIONS_MAX // 4 for number in range(1, 11)}
    flood: list[asyncio.StreamWriter] = []
    try:
        for host, count in counts.items():
            for _ in range(count):
                _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
                writer.write(sent.encode())
                flood.append(writer)
        async with asyncio.timeout(health.REQUEST_TIMEOUT_S / 2):
            assert (await get(port, "/livez"))[0] == 200
    finally:
        await server.stop()
        for writer in flood:
            writer.close()


async def test_a_port_that_is_taken_is_stated_plainly() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(PortTaken, match="--health-listener"),
    ):
        async with serve_at("127.0.0.1", taken.getsockname()[1])(BrokerHealth()):
            pass
