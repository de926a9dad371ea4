"""Thousands of idle connections do not keep clients and brokers from connecting and logging in."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.errors import ErrorCode
from penstock.protocol import apis
from penstock.protocol.gen import metadata
from penstock.protocol.sasl.mechanisms import plain_message
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, secure_cluster
from tests.support.waiting import PATIENCE_S, until

UNAUTHENTICATED_MAX = 40
FLOOD = {"127.0.0.2": 200} | {f"127.0.1.{number}": 20 for number in range(1, 11)}
"""Connections opened from each address."""


@contextlib.contextmanager
def flooded(port: int) -> Iterator[None]:
    with contextlib.ExitStack() as opened:
        for host, count in FLOOD.items():
            for _ in range(count):
                opened.enter_context(
                    socket.create_connection(
                        ("127.0.0.1", port), PATIENCE_S, source_address=(host, 0)
                    )
                )
        yield


async def log_in(port: int) -> None:
    async with Attacker.connected(port) as client:
        response = await client.log_in("PLAIN", plain_message(BROKER_USER, BROKER_PASSWORD))
        assert response.error_code == ErrorCode.NONE
        assert (await client.send_request(apis.METADATA, 9, metadata.MetadataRequest(None))).brokers


def flooded_cluster(directory: Path, **settings: object) -> Cluster:
    files = {"ssl_keystore_location": "", "ssl_truststore_location": ""}
    listeners = ("EXTERNAL", "INTERNAL")
    security = {
        "unauthenticated_connections_max": UNAUTHENTICATED_MAX,
        "listener_security_protocol_map": tuple(f"{name}:SASL_PLAINTEXT" for name in listeners),
        "inter_broker_listener_name": "INTERNAL",
    }
    return secure_cluster(directory, *listeners, security=security | files, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"connections_max": UNAUTHENTICATED_MAX // 2}],
    ids=["unauthenticated", "connections"],
)
@pytest.mark.parametrize("target", ["EXTERNAL", "INTERNAL"])
async def test_clients_and_brokers_connect_despite_thousands_of_idle_connections(
    tmp_path: Path, settings: dict[str, int], target: str
) -> None:
    async with flooded_cluster(tmp_path, **settings) as cluster:
        server = cluster.broker.server
        async with Attacker.connected(server.ports["INTERNAL"]) as broker:
            response = await broker.log_in("PLAIN", plain_message(BROKER_USER, BROKER_PASSWORD))
            assert response.error_code == ErrorCode.NONE
            before = server.accepted_count
            with flooded(server.ports[target]):
                await until(lambda: server.accepted_count - before == sum(FLOOD.values()))
                async with asyncio.timeout(PATIENCE_S):
                    for listener in server.ports.values():
                        await log_in(listener)
                    request = metadata.MetadataRequest(None)
                    assert (await broker.send_request(apis.METADATA, 9, request)).brokers
