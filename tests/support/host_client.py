"""Connect to a broker from a specific loopback address, so that ACLs can distinguish clients by
host over real sockets.
"""

import socket
import struct
from typing import Any, Self

import msgspec

from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.framing import decode_body, encode_request_frame, parse_response_header
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT
from tests.support.clients import TIMEOUT_S

ADMIN_HOST = "127.0.0.1"
CLIENT_HOST = "127.0.0.2"
_SIZE = struct.Struct(">i")


class HostClient:
    """One connection from `host`; one request at a time. Use as a context manager."""

    def __init__(
        self,
        address: str,
        host: str = CLIENT_HOST,
        client_id: str = "host-client",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        name, _, port = address.rpartition(":")
        self._socket = socket.create_connection(
            (name, int(port)), timeout=timeout_s, source_address=(host, 0)
        )
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send_request(self, api: ApiSpec, request: object, version: int | None = None) -> Any:
        """Return the response as dictionaries and lists. Raises EOFError if the broker closes the
        connection.
        """
        self.send(api, request, version)
        return self.receive(api, version)

    def send(self, api: ApiSpec, request: object, version: int | None = None) -> None:
        self._correlation_id += 1
        frame = encode_request_frame(
            api,
            api.max if version is None else version,
            self._correlation_id,
            CODECS[api.key].encode_request,
            request,
            client_id=self._client_id,
        )
        self._socket.sendall(frame)

    def receive(self, api: ApiSpec, version: int | None = None) -> Any:
        number = api.max if version is None else version
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        response = memoryview(self._read(size))
        _, at = parse_response_header(api, number, response)
        found = decode_body(
            CODECS[api.key].decode_response, response, at, number, MAX_ELEMENTS_COUNT
        )
        return msgspec.to_builtins(found)

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise EOFError("the broker closed the connection")
            data += piece
        return data
