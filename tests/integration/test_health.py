"""Health endpoints over HTTP while a broker loses its dependencies. Health requests do not slow the
broker down.
"""

import asyncio
import socket
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.health import BrokerHealth, StoreProbe
from penstock.broker.node import Broker
from penstock.deploy.errors import PortTaken
from penstock.deploy.node import health
from penstock.deploy.node.health import HttpServer, routes_of, serve_at
from penstock.objectstore.errors import Unavailable
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S, until


async def send_request(port: int, request: str) -> tuple[int, str]:
    """Return status and body, or status 0 if the connection was closed without a response."""
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


async def test_broker_is_ready_until_it_loses_its_session(tmp_path: Path) -> None:
    async with (
        Cluster(
            tmp_path,
            controller_settings={"session_timeout_ms": 2_000, "heartbeat_interval_ms": 300},
        ) as cluster,
        serve_at("127.0.0.1", 0)(healthy(cluster.broker, Store())) as port,
    ):
        assert isinstance(port, int)

        async def is_ok(path: str) -> bool:
            return await get(port, path) == (200, "ok\n")

        for path in ("/startz", "/livez"):
            assert await is_ok(path)
        for path in ("/readyz", "/readyz?verbose"):
            await until(partial(is_ok, path))  # a stalled process loses its session for a moment
        await cluster.stop_controller()
        await until(lambda: not cluster.broker.follower.can_write())
        status, reason = await get(port, "/readyz")
        assert status == 503
        assert "session" in reason
        assert await get(port, "/livez") == (200, "ok\n"), (
            "it waits for a controller: a new process could do no more"
        )


async def test_concurrent_health_requests_share_one_store_probe_and_report_its_error(
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


async def test_stopping_broker_is_alive_but_not_ready(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        it = healthy(cluster.broker, Store())
        it.stopping()
        assert "stopping" in (await it.not_ready())[0]
        assert it.not_alive() == []


async def test_node_is_alive_but_not_ready_before_its_broker_starts() -> None:
    it = BrokerHealth()
    assert it.not_started()
    assert it.not_alive() == []
    assert await it.not_ready() == it.not_started()


async def test_malformed_http_requests_are_rejected() -> None:
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
async def test_health_probes_are_served_during_a_connection_flood(
    sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address opens more connections than allowed, while other addresses open a few."""
    monkeypatch.setattr(health, "REQUEST_TIMEOUT_S", 2 * PATIENCE_S)
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


async def test_port_in_use_is_reported_clearly() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(PortTaken, match="--health-listener"),
    ):
        async with serve_at("127.0.0.1", taken.getsockname()[1])(BrokerHealth()):
            pass
