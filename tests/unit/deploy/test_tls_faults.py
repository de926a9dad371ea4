"""Commands name the fault of a broker's certificate, and what to do."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from penstock.base.listeners import SecurityProtocol
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.errors import KafkaFailed
from tests.support.certs import Authority


@pytest.mark.parametrize(
    ("certificate", "trusted", "fault"),
    [
        ({}, False, "no trusted CA signed its certificate: .* in ssl.ca.location"),
        ({"days": (-10, -5)}, True, "has expired: renew it"),
        ({"days": (5, 10)}, True, "is not valid yet: compare the clocks"),
        ({"hosts": ("other.example",)}, True, "does not name the host of this address"),
        (None, True, "its port does not use TLS"),
    ],
    ids=["untrusted", "expired", "not yet valid", "host", "plain"],
)
async def test_a_fault_of_tls_is_named(
    tmp_path: Path, certificate: dict[str, Any] | None, trusted: bool, fault: str
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    tls = None
    if certificate is not None:
        made = authority.make("broker", **certificate)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(made.certificate, made.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ca = authority.file if trusted else other.file
        security = ClientSecurity(SecurityProtocol.SSL, ca=str(ca))
        with pytest.raises(KafkaFailed, match=f"TLS with {address} failed: .*{fault}"):
            await asyncio.to_thread(WireClient, address, security)
