"""Kafka messages as frames, as the real handlers read and write them."""

from types import SimpleNamespace
from typing import Any

from penstock.base.listeners import SecurityProtocol
from penstock.base.principal import ANONYMOUS
from penstock.protocol.codecs import CODECS
from penstock.protocol.primitives import Reader, Writer


def connection_info(number: int) -> SimpleNamespace:
    """`broker.network.request.ConnectionInfo`. number: increases with each connection."""
    return SimpleNamespace(
        id=number,
        listener="PLAINTEXT",
        local_host="127.0.0.1",
        local_port=9092,
        peer="sim",
        peer_host="sim",
        security_protocol=SecurityProtocol.PLAINTEXT,
        principal=ANONYMOUS,
        sender=None,  # clients share connections, so none is known to wait
        close_quietly=lambda: None,
    )


CONNECTION = connection_info(0)


def encode_request(api: Any, version: int, message: Any) -> bytes:
    body = Writer()
    CODECS[api.key].encode_request(body, message, version)
    return bytes(body)


def decode_response(api: Any, version: int, response: Any) -> Any:
    frame = b"".join(response) if isinstance(response, list) else bytes(response)
    reader = Reader(memoryview(frame), 9 if api.is_flexible(version) else 8)
    message = CODECS[api.key].decode_response(reader, version)
    reader.expect_end()
    return message
