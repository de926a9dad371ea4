"""A connection of a thread to one broker.

Invariant: no step of a request waits longer than its timeout or the limit of `wait_at_most`, and
every failure is a KafkaFailed.
"""

import socket
import ssl
from contextvars import ContextVar
from math import inf
from typing import Final, Protocol, Self, TypeVar

from penstock.base.listeners import SecurityProtocol
from penstock.base.tls_faults import explain
from penstock.protocol import apis, framing
from penstock.protocol.apis import ApiSpec
from penstock.protocol.client.errors import (
    AuthenticationRefused,
    KafkaFailed,
    NoBroker,
    NoResponse,
)
from penstock.protocol.errors import WireError
from penstock.protocol.gen import api_versions
from penstock.protocol.sasl.login import SaslLogin
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

TIMEOUT_S: Final = 35.0
"""Timeout of a request, which is longer than a broker's wait for the controller."""
_CONNECT_TIMEOUT_S: Final = 5.0
_GREETING_TIMEOUT_S: Final = 1.0
"""Maximum wait for the first response of a broker if others can be tried. Even a hung broker may
accept connections.
"""
FIRST_RESPONSE_S: Final = 5.0
"""Maximum wait for the first response of the last broker. Brokers can send this response without
any work.
"""
_TLS_ALERT: Final = b"\x15\x03"
_ALERTS: Final = ("CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE")
_CA: Final = "ssl.ca.location"
_T = TypeVar("_T")
_patience_s: ContextVar[float] = ContextVar("patience_s", default=inf)


def wait_at_most(seconds: float) -> None:
    """Limit how long requests in this context wait."""
    _patience_s.set(seconds)


def patience_s() -> float:
    """Return the maximum wait of a request in this context."""
    return _patience_s.get()


class Access(Protocol):
    """Connection settings of a listener."""

    @property
    def protocol(self) -> SecurityProtocol: ...

    @property
    def who(self) -> str:
        """The user name, used in messages."""
        ...

    def tls(self) -> ssl.SSLContext | None:
        """Return a context for connections, or None without TLS."""
        ...

    def login(self) -> SaslLogin | None:
        """Return a new login, or None without SASL."""
        ...


class Connection:
    """A connection to the first address whose broker responds. If none of several brokers responds
    in time, the first one that accepts connections is given another FIRST_RESPONSE_S, because it
    may merely be slow. Use as a context manager.
    """

    def __init__(self, bootstrap: str, access: Access, *, negotiates: bool = False) -> None:
        """bootstrap: HOST:PORT, separated by commas. negotiates: whether to request the versions
        that the broker supports, which allows brokers of any Kafka version. Raises KafkaFailed,
        NoBroker if no broker responds at any address.
        """
        self.bootstrap = bootstrap
        self._has_tls = access.protocol.has_tls
        self._correlation_id = 0
        self._greeting: api_versions.ApiVersionsResponse | None = None
        self._served: dict[int, tuple[int, int]] | None = None
        self._socket = self._connect(bootstrap.split(","), access)
        try:
            greeting = self._greeting or self._greeted(FIRST_RESPONSE_S)
            self._log_in(access)
            if negotiates:
                self._served = {
                    item.api_key: (item.min_version, item.max_version) for item in greeting.api_keys
                }
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

    def send_request(
        self,
        api: ApiSpec,
        request: object,
        kind: type[_T],
        timeout_s: float = TIMEOUT_S,
        *,
        version: int | None = None,
    ) -> _T:
        """Send a request and return the response, decoded as this message type. After a failure,
        the connection cannot be used.

        version: None for the newest version.
        """
        try:
            return self._exchange(api, request, kind, timeout_s, version)
        except (OSError, WireError) as error:
            raise self._failure(api, error) from None

    def _exchange(
        self, api: ApiSpec, request: object, kind: type[_T], timeout_s: float, version: int | None
    ) -> _T:
        self._correlation_id += 1
        version = self.version(api) if version is None else version
        frame = framing.encode_request_frame(
            api,
            version,
            self._correlation_id,
            api.codec.encode_request,
            request,
            client_id="penstock",
        )
        self._socket.settimeout(min(timeout_s, patience_s()))
        self._socket.sendall(frame)
        data = self._read(self._read_size())
        response = framing.decode_response(api, version, self._correlation_id, data)
        assert isinstance(response, kind)
        return response

    def _failure(self, api: ApiSpec, error: OSError | WireError) -> KafkaFailed:
        # With TLS 1.3, a broker rejects a client's certificate only after the handshake.
        fault = explain(str(error), ca_setting=_CA) if isinstance(error, ssl.SSLError) else ""
        failed = AuthenticationRefused if _is_refused(error) else NoResponse
        return failed(f"{api.name} got no response from {self.bootstrap}: {fault or error}")

    def version(self, api: ApiSpec, newest: int | None = None) -> int:
        """Return the newest version that both sides support, at most `newest`; without
        `negotiates`, the newest version of this side. Raises KafkaFailed.
        """
        own = api.max if newest is None else min(api.max, newest)
        if self._served is None:
            return own
        low, high = self._served.get(api.key, (0, -1))
        if min(own, high) < max(low, api.served_min):
            raise KafkaFailed(
                f"the broker serves {api.name} up to version {high}, {api.served_min} is needed:"
                " use Kafka 2.1 or newer"
            )
        return min(own, high)

    def _greeted(self, timeout_s: float) -> api_versions.ApiVersionsResponse:
        """Send the first request of every client, which needs no login. Raises KafkaFailed,
        NoBroker if the response is missing or does not come from a broker.
        """
        wait_s = min(timeout_s, patience_s())
        try:
            return self._exchange(
                apis.API_VERSIONS,
                api_versions.ApiVersionsRequest(),
                api_versions.ApiVersionsResponse,
                wait_s,
                0,
            )
        except ssl.SSLError as error:
            raise self._failure(apis.API_VERSIONS, error) from None
        except TimeoutError:
            reason = (
                f"it accepts connections but sent no response within {wait_s:g} s, as a hung broker"
                " or another service does"
            )
        except OSError:
            reason = "it closes the connection without a response, as another service does"
        except WireError as error:
            reason = f"its response is not that of a Kafka broker ({error})"
        raise NoBroker(self.bootstrap, reason)

    def _connect(self, addresses: list[str], access: Access) -> socket.socket:
        slow = reason = ""
        for address in addresses:
            try:
                connection = _connected(address, access)
            except socket.gaierror:
                reason = f"the host name {address.strip().rpartition(':')[0]!r} cannot be resolved"
                continue
            if connection is None:
                continue
            if len(addresses) == 1 or self._greets(connection):
                return connection
            connection.close()
            slow = slow or address
        connection = _connected(slow, access) if slow else None
        if connection is None:
            raise NoBroker(self.bootstrap, reason)
        return connection

    def _greets(self, connection: socket.socket) -> bool:
        """Return whether the broker responds in time. With TLS, the handshake has already proved
        this.
        """
        if self._has_tls:
            return True
        self._socket = connection
        try:
            self._greeting = self._greeted(_GREETING_TIMEOUT_S)
        except KafkaFailed:
            # The error is not raised here: if no other broker responds, the first request on the
            # next connection fails with the reason.
            self._correlation_id = 0
            return False
        return True

    def _log_in(self, access: Access) -> None:
        login = access.login()
        if login is None:
            return
        requests = login.requests()
        try:
            request = next(requests)
            while True:
                request = requests.send(self.send_request(*request))
        except StopIteration:
            pass
        except AuthenticationFailed as error:
            raise AuthenticationRefused(f"{access.who}: {error}") from None

    def _read_size(self) -> int:
        prefix = self._read(framing.SIZE_BYTES)
        if not self._has_tls:
            _check_plain(prefix, self.bootstrap)
        return framing.frame_size_bytes(prefix)

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                if self._correlation_id == 1 and not self._has_tls:
                    _check_plain(data, self.bootstrap)
                raise OSError("the broker closed the connection")
            data += piece
        return data


def _check_plain(begin: bytes | bytearray, address: str) -> None:
    """Raise KafkaFailed if a response without TLS is missing or begins like a TLS alert."""
    if not begin or begin.startswith(_TLS_ALERT):
        how = "uses TLS" if begin else "closes connections without TLS"
        raise KafkaFailed(
            f"the port of {address} {how}: set security.protocol=SSL or SASL_SSL in the file of"
            " --command-config, or use the port without TLS"
        )


def _connected(address: str, access: Access) -> socket.socket | None:
    """Return a connection, or None if nothing responds there. Raises KafkaFailed for TLS faults,
    gaierror for an unknown host.
    """
    host, _, port = address.strip().rpartition(":")
    host = host.strip("[]")
    try:
        connection = socket.create_connection(
            (host, int(port)), timeout=min(_CONNECT_TIMEOUT_S, patience_s())
        )
    except socket.gaierror:
        raise
    except (OSError, ValueError, OverflowError):
        return None
    try:
        tls = access.tls()
        return connection if tls is None else tls.wrap_socket(connection, server_hostname=host)
    except TimeoutError:
        connection.close()
        return None
    except OSError as error:
        connection.close()
        fault = explain(f"{type(error).__name__}: {error}", ca_setting=_CA)
        failed = AuthenticationRefused if _is_refused(error) else KafkaFailed
        raise failed(f"TLS with {address} failed: {fault or error}") from None
    except BaseException:
        connection.close()
        raise


def _is_refused(error: Exception) -> bool:
    """Return whether the broker rejects the certificate of the client, or requires one."""
    return isinstance(error, ssl.SSLError) and any(alert in str(error) for alert in _ALERTS)
