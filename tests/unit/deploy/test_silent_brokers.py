"""A broker that accepts connections and is silent, as a hung one, beside one that responds."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import copy_context

import pytest

from penstock.deploy.clients.security import PLAINTEXT
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.connection import wait_at_most
from penstock.protocol.client.errors import NoResponse
from penstock.protocol.codecs import CODECS
from penstock.protocol.framing import SIZE_BYTES, encode_response_frame, parse_header
from penstock.protocol.gen import api_versions, metadata

HOST = "127.0.0.1"


@contextmanager
def listening() -> Generator[tuple[str, socket.socket]]:
    """Yield the address of a socket that nobody serves yet, and the socket."""
    with socket.create_server((HOST, 0)) as server:
        yield f"{HOST}:{server.getsockname()[1]}", server


@contextmanager
def responding() -> Generator[str]:
    """Respond to ApiVersions and Metadata."""
    answers = {
        apis.API_VERSIONS: api_versions.ApiVersionsResponse(),
        apis.METADATA: metadata.MetadataResponse(cluster_id="responds"),
    }

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, connection.makefile("rb") as stream:
                    while size := stream.read(SIZE_BYTES):
                        header = parse_header(memoryview(stream.read(int.from_bytes(size))))
                        api, version = header.api, header.api_version
                        connection.sendall(
                            encode_response_frame(
                                api,
                                version,
                                header.correlation_id,
                                CODECS[api.key].encode_response,
                                answers[api],
                            )
                        )

    with listening() as (address, server):
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        try:
            yield address
        finally:
            server.shutdown(socket.SHUT_RDWR)


def cluster_id(bootstrap: str) -> str | None:
    with WireClient(bootstrap, PLAINTEXT) as client:
        return client.send_request(
            apis.METADATA,
            metadata.MetadataRequest([]),
            metadata.MetadataResponse,
        ).cluster_id


def test_the_next_address_is_queried_instead_of_a_silent_broker() -> None:
    with listening() as (silent, _), responding() as address:
        for bootstrap in (f"{silent},{address}", f"{address},{silent}", address):
            assert cluster_id(bootstrap) == "responds"


def test_a_request_waits_no_longer_than_its_context_allows() -> None:
    def send_request(bootstrap: str) -> None:
        wait_at_most(0.2)
        with pytest.raises(NoResponse, match=r"no response from .*timed out"):
            cluster_id(bootstrap)

    with listening() as (silent, _), listening() as (other, _):
        for bootstrap in (silent, f"{silent},{other}"):
            copy_context().run(send_request, bootstrap)
