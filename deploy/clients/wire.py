"""Send Kafka admin requests that confluent-kafka lacks: one socket, one request at a time, with the
broker's own codecs.

Invariant: no call waits longer than its timeout, and every failure is a KafkaFailed. Must not be
used where throughput matters.
"""

import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from typing import Final, Self, TypeVar

from penstock.base.tls_faults import explain
from penstock.deploy.clients.restarts import has_restarted
from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.target import Target, find_brokers, no_broker
from penstock.deploy.errors import AuthenticationRefused, KafkaFailed, NoResponse
from penstock.protocol.apis import API_VERSIONS, ApiSpec
from penstock.protocol.errors import WireError
from penstock.protocol.framing import encode_request_frame, parse_response_header
from penstock.protocol.gen import api_versions
from penstock.protocol.primitives import Reader, Writer

TIMEOUT_S: Final = 35.0
"""Longer than the brokers wait for the controller."""
_CONNECT_TIMEOUT_S: Final = 5.0
_GREETING_TIMEOUT_S: Final = 1.0
"""Longest wait for a first response if there are other brokers: a hung one accepts connections."""
_RESPONSE_BYTES_MAX: Final = 100 << 20
_SIZE: Final = struct.Struct(">i")
_TLS_ALERT: Final = b"\x15\x03"
_ALERTS: Final = ("CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE")
_CA: Final = "ssl.ca.location"
_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")
_patience_s: ContextVar[float] = ContextVar("patience_s", default=inf)


def wait_at_most(seconds: float) -> None:
    """Let no request of this context wait longer."""
    _patience_s.set(seconds)


def patience_s() -> float:
    """Return the longest wait of a request in this context."""
    return _patience_s.get()


class WireClient:
    """Connect to the first bootstrap server that responds. Use as a context manager."""

    def __init__(self, bootstrap: str, security: ClientSecurity | None = None) -> None:
        """security: how to connect; None as `--command-config` says."""
        self._target = find_brokers(bootstrap)
        self._bootstrap = self._target.bootstrap
        self._security = security or current_security()
        self._correlation_id = 0
        self._socket = _connect(self._target, self._security)
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
        """Send one request and return the response. After a failure the connection is unusable.

        version: None for the highest one that brokers of this version serve.
        """
        self._correlation_id += 1
        version = api.max if version is None else version
        frame = encode_request_frame(
            api, version, self._correlation_id, encode, request, client_id="penstock"
        )
        self._socket.settimeout(min(timeout_s, patience_s()))
        try:
            self._socket.sendall(frame)
            begin = self._read(_SIZE.size)
            if not self._security.protocol.has_tls:
                _check_plain(begin, self._bootstrap)
            size = _SIZE.unpack(begin)[0]
            if not 0 <= size <= _RESPONSE_BYTES_MAX:
                raise KafkaFailed(
                    f"the answer of {self._bootstrap} to {api.name} is not a Kafka response"
                )
            answer = memoryview(self._read(size))
            _, body_offset = parse_response_header(api, version, answer)
            return decode(Reader(answer, body_offset), version)
        except (OSError, WireError) as error:
            # With TLS 1.3 a broker rejects a client's certificate after the handshake.
            fault = explain(str(error), ca_setting=_CA) if isinstance(error, ssl.SSLError) else ""
            kind = AuthenticationRefused if _is_refused(error) else NoResponse
            raise kind(
                f"{api.name} got no response from {self._bootstrap}: {fault or error}"
            ) from None

    def _log_in(self) -> None:
        from penstock.protocol.sasl.login import SaslLogin
        from penstock.protocol.sasl.mechanisms import AuthenticationFailed
        from penstock.protocol.sasl.nonce import new_nonce

        security = self._security
        login = SaslLogin(
            security.mechanism, security.username, security.secret(), nonce=new_nonce()
        )
        requests = login.requests()
        try:
            request = next(requests)
            while True:
                codec = request.api.codec
                response = self.ask(
                    request.api, request.message, codec.encode_request, codec.decode_response
                )
                request = requests.send(response)
        except StopIteration:
            pass
        except AuthenticationFailed as error:
            raise AuthenticationRefused(f"{security.who}: {error}") from None

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                if self._correlation_id == 1 and not self._security.protocol.has_tls:
                    _check_plain(data, self._bootstrap)
                raise OSError("the broker closed the connection")
            data += piece
        return data


def check_reachable(target: Target, security: ClientSecurity) -> None:
    """Raise KafkaFailed if no address of the target has a broker that speaks TLS, or does not, as
    the client does.
    """
    if _is_reachable(target, security):
        return
    if not (has_restarted(target.bootstrap) and _is_reachable(target, security)):
        raise no_broker(target)


def _is_reachable(target: Target, security: ClientSecurity) -> bool:
    for address in target.bootstrap.split(","):
        with suppress(OSError):
            connection = _connected(address, security)
            if connection is not None:
                with connection:
                    if not security.protocol.has_tls:
                        connection.sendall(_greeting())
                        _check_plain(connection.recv(_SIZE.size), address)
                return True
    return False


def _check_plain(begin: bytes | bytearray, address: str) -> None:
    """Raise KafkaFailed if a response without TLS begins like an alert of TLS, or not at all."""
    if not begin or begin.startswith(_TLS_ALERT):
        how = "uses TLS" if begin else "closes connections without TLS"
        raise KafkaFailed(
            f"the port of {address} {how}: set security.protocol=SSL or SASL_SSL in the file of"
            " --command-config, or use the port without TLS"
        )


def _connect(target: Target, security: ClientSecurity) -> socket.socket:
    """Return a connection to the first broker that responds, after a restart if need be."""
    connection = _first_connection(target, security)
    if connection is None and has_restarted(target.bootstrap):
        connection = _first_connection(target, security)
    if connection is None:
        raise no_broker(target)
    return connection


def _first_connection(target: Target, security: ClientSecurity) -> socket.socket | None:
    """Return a connection to the first broker that responds. If none does in time, return one to
    the first that accepts connections: it may only be slow.
    """
    addresses = target.bootstrap.split(",")
    slow = ""
    for address in addresses:
        connection = _connected(address, security)
        if connection is None:
            continue
        if len(addresses) == 1 or _greets(connection, security):
            return connection
        connection.close()  # A late greeting would look like the response to another request.
        slow = slow or address
    return _connected(slow, security) if slow else None


def _greeting() -> Writer:
    """Return a request that every broker responds to, before authentication."""
    return encode_request_frame(
        API_VERSIONS, 0, 0, api_versions.encode_request, api_versions.ApiVersionsRequest()
    )


def _greets(connection: socket.socket, security: ClientSecurity) -> bool:
    """Return whether a broker responds in time. With TLS it has, in the handshake."""
    if security.protocol.has_tls:
        return True
    connection.settimeout(min(_GREETING_TIMEOUT_S, patience_s()))
    try:
        connection.sendall(_greeting())
        with connection.makefile("rb") as stream:
            size = stream.read(_SIZE.size)
            if len(size) == _SIZE.size:
                stream.read(min(max(0, _SIZE.unpack(size)[0]), _RESPONSE_BYTES_MAX))
    except TimeoutError:
        return False
    except OSError:
        pass  # The first request says why.
    return True


def _connected(address: str, security: ClientSecurity) -> socket.socket | None:
    """Return a connection, None if nothing responds there. Raises KafkaFailed for faults of TLS."""
    host, _, port = address.strip().rpartition(":")
    host = host.strip("[]")
    try:
        connection = socket.create_connection(
            (host, int(port)), timeout=min(_CONNECT_TIMEOUT_S, patience_s())
        )
    except (OSError, ValueError, OverflowError):
        return None
    tls = security.tls()
    if tls is None:
        return connection
    try:
        return tls.wrap_socket(connection, server_hostname=host)
    except TimeoutError:
        connection.close()
        return None
    except OSError as error:
        connection.close()
        fault = explain(f"{type(error).__name__}: {error}", ca_setting=_CA)
        kind = AuthenticationRefused if _is_refused(error) else KafkaFailed
        raise kind(f"TLS with {address} failed: {fault or error}") from None


def _is_refused(error: Exception) -> bool:
    """Return whether the broker rejects the certificate of the client, or requires one."""
    return isinstance(error, ssl.SSLError) and any(alert in str(error) for alert in _ALERTS)
