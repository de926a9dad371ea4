"""Send Kafka admin requests that confluent-kafka lacks: one socket, one request at a time, with the
broker's own codecs.

Invariant: no call waits longer than its timeout, and every failure is a KafkaFailed. Must not be
used where throughput matters.
"""

import socket
import struct
from collections.abc import Callable
from typing import Final, Self, TypeVar

from broker.security.access import new_nonce
from broker.security.exchange import AuthenticationFailed
from broker.security.sasl_client import SaslLogin
from broker.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, ApiSpec
from broker.wire.errors import WireError
from broker.wire.framing import encode_request_frame, parse_response_header
from broker.wire.gen import sasl_authenticate, sasl_handshake
from broker.wire.primitives import Reader, Writer
from deploy.clients.security import ClientSecurity, current_security
from deploy.errors import KafkaFailed

TIMEOUT_S: Final = 35.0
"""Longer than the brokers wait for the controller."""
_CONNECT_TIMEOUT_S: Final = 5.0
_RESPONSE_BYTES_MAX: Final = 100 << 20
_SIZE: Final = struct.Struct(">i")
_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")


class WireClient:
    """Connect to the first bootstrap server that answers. Use as a context manager."""

    def __init__(self, bootstrap: str, security: ClientSecurity | None = None) -> None:
        """security: how to connect; None as `--command-config` says."""
        self._bootstrap = bootstrap
        self._security = security or current_security()
        self._correlation_id = 0
        self._socket = self._connect()
        if self._security.protocol.has_sasl:
            try:
                self._log_in()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def connection(self) -> socket.socket:
        """Return the authenticated socket, for a caller that sends its own frames."""
        return self._socket

    def ask(
        self,
        api: ApiSpec,
        request: _RequestT,
        encode: Callable[[Writer, _RequestT, int], None],
        decode: Callable[[Reader, int], _ResponseT],
        timeout_s: float = TIMEOUT_S,
    ) -> _ResponseT:
        """Send one request in the highest supported version and return the answer. After a failure
        the connection cannot be used.
        """
        self._correlation_id += 1
        frame = encode_request_frame(
            api, api.max, self._correlation_id, encode, request, client_id="penstock"
        )
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(frame)
            size = _SIZE.unpack(self._read(_SIZE.size))[0]
            if not 0 <= size <= _RESPONSE_BYTES_MAX:
                raise KafkaFailed(
                    f"the answer of {self._bootstrap} to {api.name} is not a Kafka response"
                )
            answer = memoryview(self._read(size))
            _, body_offset = parse_response_header(api, api.max, answer)
            return decode(Reader(answer, body_offset), api.max)
        except (OSError, WireError) as error:
            raise KafkaFailed(f"{api.name} got no answer from {self._bootstrap}: {error}") from None

    def _log_in(self) -> None:
        security = self._security
        login = SaslLogin(
            security.mechanism, security.username, security.secret(), nonce=new_nonce()
        )
        chosen = self.ask(
            SASL_HANDSHAKE,
            sasl_handshake.SaslHandshakeRequest(login.mechanism),
            sasl_handshake.encode_request,
            sasl_handshake.decode_response,
        )
        if chosen.error_code:
            allowed = ", ".join(chosen.mechanisms)
            raise KafkaFailed(f"the brokers have no {login.mechanism}; use one of {allowed}")
        token: bytes | None = login.first()
        try:
            while token is not None:
                answer = self.ask(
                    SASL_AUTHENTICATE,
                    sasl_authenticate.SaslAuthenticateRequest(token),
                    sasl_authenticate.encode_request,
                    sasl_authenticate.decode_response,
                )
                if answer.error_code:
                    raise KafkaFailed(f"{security.who}: {answer.error_message}")
                token = login.answer(bytes(answer.auth_bytes))
        except AuthenticationFailed as error:
            raise KafkaFailed(f"{security.who}: {error}") from None

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise OSError("the broker closed the connection")
            data += piece
        return data

    def _connect(self) -> socket.socket:
        for address in self._bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            host = host.strip("[]")
            try:
                connection = socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S)
            except (OSError, ValueError, OverflowError):
                continue
            tls = self._security.tls()
            if tls is None:
                return connection
            try:
                return tls.wrap_socket(connection, server_hostname=host)
            except OSError as error:
                connection.close()
                raise KafkaFailed(f"TLS with {address} failed: {error}") from None
        raise KafkaFailed(
            f"no broker answers at {self._bootstrap}; start one with `penstock dev`, or"
            " choose another with --bootstrap"
        )
