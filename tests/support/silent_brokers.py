"""Brokers in a thread of the test: a broker that responds to the initial requests of clients, and
sockets that accept connections but never respond, like a hung broker.
"""

import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.framing import SIZE_BYTES, encode_response_frame, parse_header
from penstock.protocol.gen import api_versions, metadata

HOST = "127.0.0.1"
RESPONSES: Mapping[ApiSpec, object] = {
    apis.API_VERSIONS: api_versions.ApiVersionsResponse(),
    apis.METADATA: metadata.MetadataResponse(cluster_id="responds"),
}


@contextmanager
def listening() -> Generator[tuple[str, socket.socket]]:
    """Yield the address of a listening socket without a server, and the socket."""
    with socket.create_server((HOST, 0)) as server:
        yield f"{HOST}:{server.getsockname()[1]}", server


@contextmanager
def responding(responses: Mapping[ApiSpec, object] = RESPONSES) -> Generator[str]:
    """Respond to these requests; the mapping may be changed later."""
    with listening() as (address, server):
        serve(server, responses)
        try:
            yield address
        finally:
            server.shutdown(socket.SHUT_RDWR)


def serve(server: socket.socket, responses: Mapping[ApiSpec, object] = RESPONSES) -> None:
    """Respond to these requests until the socket is shut down."""
    threading.Thread(target=_accept, args=(server, responses), daemon=True).start()


def _accept(server: socket.socket, responses: Mapping[ApiSpec, object]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection, responses), daemon=True).start()


def _serve(connection: socket.socket, responses: Mapping[ApiSpec, object]) -> None:
    with suppress(OSError), connection, connection.makefile("rb") as stream:
        while size := stream.read(SIZE_BYTES):
            header = parse_header(memoryview(stream.read(int.from_bytes(size))))
            connection.sendall(
                encode_response_frame(
                    header.api,
                    header.api_version,
                    header.correlation_id,
                    CODECS[header.api.key].encode_response,
                    responses[header.api],
                )
            )
