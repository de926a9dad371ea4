"""All Python versions verify the same certificates, and development certificates pass strict
checks.
"""

import asyncio
import ssl
from pathlib import Path

import pytest

from penstock.base.client_tls import client_tls
from penstock.deploy.local.certificates import Authority
from tests.support.certs import Authority as PlainAuthority


async def connect(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> bytes:
    """Return what a server sends over TLS. Raises SSLError if one side rejects the other."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    listening = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname=host
        )
        try:
            return await reader.read()
        finally:
            writer.close()


async def test_development_certificates_have_key_identifiers(tmp_path: Path) -> None:
    """Clients use the rules of `ssl.create_default_context`, which are strict from
    Python 3.13 on.
    """
    authority = Authority.make("development CA")
    for name, hosts in (("broker", ["localhost"]), ("client", [])):
        (tmp_path / f"{name}.pem").write_bytes(authority.issue(name, hosts=hosts).keystore)
    server = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode("ascii")
    )
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(tmp_path / "broker.pem")
    client = ssl.create_default_context(cadata=authority.pem.decode("ascii"))
    client.load_cert_chain(tmp_path / "client.pem")
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert await connect(server, client) == b"hello"


async def test_certificates_without_key_identifiers_are_verified(tmp_path: Path) -> None:
    files = PlainAuthority(tmp_path / "ours").make("server", hosts=("localhost",))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    assert await connect(server, client_tls(str(files.ca))) == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError, match="signature failure"):
        await connect(server, client_tls(str(PlainAuthority(tmp_path / "others").file)))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await connect(server, client_tls(str(files.ca)), "other.example")
    with pytest.raises(FileNotFoundError):
        client_tls(str(tmp_path / "none.pem"))
