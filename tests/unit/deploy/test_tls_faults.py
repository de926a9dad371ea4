"""Clients report TLS faults at once, with advice."""

import asyncio
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from penstock.base.client_tls import client_tls
from penstock.base.listeners import SecurityProtocol
from penstock.deploy.clients import kafka
from penstock.deploy.clients.bearer_tokens import TokenSource
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.mirror.cluster import Cluster, ClusterAddress
from penstock.deploy.node.client_metrics import OtlpMetrics
from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.gen import api_versions
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.model import RegistryError
from tests.support.certs import Authority
from tests.support.waiting import PATIENCE_S, until


class Case(NamedTuple):
    """certificate: what is wrong with the server's certificate; None for a server without TLS. ca:
    the CA of the client; None for a client without TLS. fault: the error message over Kafka, and
    over HTTP.
    """

    certificate: dict[str, Any] | None
    ca: str | None
    fault: str
    http_fault: str = ""
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3


_GOOD = {"days": (-1.0, 10.0)}
_NO_TLS = "the port of .* set security.protocol=SSL or SASL_SSL"
CASES = {
    "untrusted": Case(_GOOD, "other", "no trusted CA signed its certificate: .* in "),
    "expired": Case({"days": (-10, -5)}, "ca", "its certificate has expired: renew it"),
    "not yet valid": Case({"days": (5, 10)}, "ca", "is not valid yet: compare the clocks"),
    "host": Case({"hosts": ("other.example",)}, "ca", "does not name the host of this address"),
    "server without TLS": Case(None, "ca", "its port does not use TLS"),
    "client without TLS": Case(_GOOD, None, _NO_TLS, "if its port uses TLS, use https://"),
    "old version": Case(
        _GOOD, "ca", "no version .*of TLS in common", newest=ssl.TLSVersion.TLSv1_1
    ),
}


def greeted(address: str, security: ClientSecurity) -> None:
    with WireClient(address, security) as client:
        client.send_request(
            apis.API_VERSIONS,
            api_versions.ApiVersionsRequest(),
            api_versions.ApiVersionsResponse,
            timeout_s=PATIENCE_S,
        )


def librdkafka(address: str, security: ClientSecurity) -> None:
    Kafka(address, security)


def mirror(address: str, security: ClientSecurity) -> None:
    with Cluster(ClusterAddress(address, security, is_source=True)) as cluster:
        cluster.retried(cluster.metadata)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


class Peer(NamedTuple):
    address: str
    ca: Path | None


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def with_peer(case: Case, directory: Path, use: Callable[[Peer], Any]) -> None:
    authority, other = Authority(directory), Authority(directory, "other")
    tls = None
    if case.certificate is not None:
        made = authority.make("broker", **case.certificate)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(made.certificate, made.key)
        if case.newest < ssl.TLSVersion.TLSv1_2:
            tls.minimum_version, tls.maximum_version = ssl.TLSVersion.TLSv1, case.newest
            tls.set_ciphers("ALL:@SECLEVEL=0")
    ca = {"ca": authority.file, "other": other.file, None: None}[case.ca]
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        await use(Peer(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", ca))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("client", [greeted, librdkafka, mirror])
async def test_kafka_clients_report_tls_faults(
    tmp_path: Path,
    case: Case,
    client: Callable[[str, ClientSecurity], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_S", 2 * PATIENCE_S)  # how long librdkafka would retry

    async def use(peer: Peer) -> None:
        security = PLAINTEXT
        if peer.ca is not None:
            security = ClientSecurity(SecurityProtocol.SSL, ca=str(peer.ca))
        with pytest.raises(KafkaFailed, match=case.fault):
            await asyncio.wait_for(asyncio.to_thread(client, peer.address, security), PATIENCE_S)

    await with_peer(case, tmp_path, use)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_http_clients_report_tls_faults(tmp_path: Path, case: Case) -> None:
    fault = case.http_fault or case.fault

    async def use(peer: Peer) -> None:
        url = f"{'http' if peer.ca is None else 'https'}://{peer.address}"
        tls = None if peer.ca is None else client_tls(str(peer.ca))
        registry = SchemaRegistry(url, tls=tls)
        with pytest.raises(RegistryError, match=fault):
            await asyncio.to_thread(registry.by_id, 1)
        tokens = TokenSource(url, "id", "secret", ca=str(peer.ca or ""))
        with pytest.raises(KafkaFailed, match=fault):
            await asyncio.to_thread(tokens.token)
        environment = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(peer.ca or "")}
        sender = OtlpMetrics(url, environment)
        with capture_logs() as lines:
            sending = asyncio.create_task(sender.run())
            sender.offer(b"metrics")
            await until(lambda: bool(lines))
        sending.cancel()
        assert lines[0]["event"] == "client_metrics_delayed"
        assert re.search(fault, lines[0]["reason"]), lines

    await with_peer(case, tmp_path, use)
