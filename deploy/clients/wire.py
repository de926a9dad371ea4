"""Send Kafka admin requests that confluent-kafka lacks: one socket, one request at a time, with the
broker's own codecs.

Invariant: no call waits longer than its timeout, and every failure is a KafkaFailed. Must not be
used where throughput matters.
"""

import socket
import struct
from collections.abc import Callable
from typing import Final, Self, TypeVar

from penstock.base.tls_faults import explain
from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.target import find_brokers, no_broker
from penstock.deploy.errors import KafkaFailed
from penstock.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, ApiSpec
from penstock.protocol.errors import WireError
from penstock.protocol.framing import encode_request_frame, parse_response_header
from penstock.protocol.primitives import Reader, Writer

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
        self._target = find_brokers(bootstrap)
        self._bootstrap = self._target.bootstrap
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
        *,
        version: int | None = None,
    ) -> _ResponseT:
        """Send one request and return the answer. After a failure the connection cannot be used.

        version: None for the highest one that brokers of this version serve.
        """
        self._correlation_id += 1
        version = api.max if version is None else version
        frame = encode_request_frame(
            api, version, self._correlation_id, encode, request, client_id="penstock"
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
            _, body_offset = parse_response_header(api, version, answer)
            return decode(Reader(answer, body_offset), version)
        except (OSError, WireError) as error:
            raise KafkaFailed(f"{api.name} got no answer from {self._bootstrap}: {error}") from None

    def _log_in(self) -> None:
        # Loads cryptography and PyJWT, which takes as long as the rest of a command.
        from penstock.broker.security.access import new_nonce
        from penstock.broker.security.exchange import AuthenticationFailed
        from penstock.broker.security.sasl_client import SaslLogin
        from penstock.protocol.gen import sasl_authenticate, sasl_handshake

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
                fault = explain(str(error), ca_setting="ssl.ca.location")
                raise KafkaFailed(f"TLS with {address} failed: {fault or error}") from None
        raise no_broker(self._target)
