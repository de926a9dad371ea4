"""Track clients that push metrics, and reject invalid requests and requests that come too early, as
Kafka does (KIP-714). Pure.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from uuid import UUID

from penstock.broker.client_metrics.subscriptions import ClientIdentity, ClientSubscription
from penstock.protocol.batch.compression import Compression
from penstock.protocol.error_codes import ErrorCode

CLIENTS_MAX: Final = 16_384
"""Maximum number of tracked clients, as in Kafka. A client uses about 1 KB. Above the limit, the
client that has been idle longest is dropped and must start over with its next request.
"""
SILENT_INTERVALS: Final = 3
SILENT_MS_MIN: Final = 60_000
_ASK_AGAIN: Final = frozenset(
    {ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
)
"""Errors after which a client may immediately request its subscription again."""
_COMPRESSIONS: Final = frozenset(Compression)
_LONG_AGO: Final = float("-inf")


class TelemetryRefused(Exception):
    """Raised when a client request is rejected."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ClientInstance:
    """One client. It may push once per interval, once after each subscription request, and once at
    shutdown. Its subscriptions depend on the identity in its first request.
    """

    __slots__ = (
        "_got_ms",
        "_has_ended",
        "_last_error",
        "_pushed_ms",
        "connection_id",
        "heard_ms",
        "identity",
        "version",
        "wanted",
    )

    def __init__(
        self, identity: ClientIdentity, connection_id: int, wanted: ClientSubscription, version: int
    ) -> None:
        """connection_id: the connection of the client's first request. version: the version of the
        subscriptions from which `wanted` was computed.
        """
        self.identity = identity
        self.connection_id = connection_id
        self.wanted = wanted
        self.version = version
        self.heard_ms = _LONG_AGO
        self._has_ended = False
        self._last_error = ErrorCode.NONE
        self._got_ms = _LONG_AGO
        self._pushed_ms = _LONG_AGO

    def is_forgotten(self, now_ms: float) -> bool:
        return now_ms - self.heard_ms > max(
            SILENT_MS_MIN, SILENT_INTERVALS * self.wanted.interval_ms
        )

    def get(self, now_ms: float) -> None:
        """Record a subscription request. Raises TelemetryRefused."""
        if now_ms - max(self._got_ms, self._pushed_ms) >= self.wanted.interval_ms:
            self._got_ms = now_ms
        elif self._last_error not in _ASK_AGAIN:
            raise self._refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._last_error = ErrorCode.NONE

    def push(
        self,
        now_ms: float,
        *,
        subscription_id: int,
        compression: int,
        size_bytes: int,
        size_bytes_max: int,
        is_last: bool,
    ) -> None:
        """Record a push. is_last: the client is shutting down. Raises TelemetryRefused."""
        had_ended, self._has_ended = self._has_ended, is_last
        if had_ended:
            raise self._refused(ErrorCode.INVALID_REQUEST)
        if self._got_ms > self._pushed_ms or now_ms - self._pushed_ms >= self.wanted.interval_ms:
            self._pushed_ms = now_ms
        elif not is_last:
            raise self._refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != self.wanted.subscription_id:
            raise self._refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if compression not in _COMPRESSIONS:
            raise self._refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if size_bytes > size_bytes_max:
            raise self._refused(ErrorCode.TELEMETRY_TOO_LARGE)
        self._last_error = ErrorCode.NONE

    def _refused(self, code: ErrorCode) -> TelemetryRefused:
        self._last_error = code
        return TelemetryRefused(code)


class ClientInstances:
    """The clients of one broker. A client is dropped when the connection of its first request
    closes, after SILENT_INTERVALS without a request, or above `clients_max`.
    """

    def __init__(
        self,
        wanted_of: Callable[[ClientIdentity, UUID], ClientSubscription],
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        """wanted_of: returns the metrics that a client should push."""
        self._wanted_of = wanted_of
        self._clients_max = clients_max
        self._clients: OrderedDict[UUID, ClientInstance] = OrderedDict()
        self._by_connection: dict[int, set[UUID]] = {}
        """Clients by the connection that carried their first request."""
        self._version = 0

    def __len__(self) -> int:
        return len(self._clients)

    def subscriptions_changed(self) -> None:
        """Record that a subscription was set, changed or deleted."""
        self._version += 1

    def close_connection(self, connection_id: int) -> None:
        for instance in self._by_connection.pop(connection_id, ()):
            del self._clients[instance]

    def heard(
        self, instance: UUID, identity: ClientIdentity, connection_id: int, now_ms: float
    ) -> ClientInstance:
        """Return the client of a request, with its current subscriptions."""
        client = self._clients.get(instance)
        if client is None or client.is_forgotten(now_ms):
            client = self._begin(instance, identity, connection_id)
        elif client.version != self._version:
            client = self._begin(instance, client.identity, connection_id)
        client.heard_ms = now_ms
        self._clients.move_to_end(instance)
        return client

    def _begin(
        self, instance: UUID, identity: ClientIdentity, connection_id: int
    ) -> ClientInstance:
        self._drop(instance)
        client = ClientInstance(
            identity, connection_id, self._wanted_of(identity, instance), self._version
        )
        self._clients[instance] = client
        self._by_connection.setdefault(connection_id, set()).add(instance)
        while len(self._clients) > self._clients_max:
            self._drop(next(iter(self._clients)))
        return client

    def _drop(self, instance: UUID) -> None:
        client = self._clients.pop(instance, None)
        if client is None:
            return
        others = self._by_connection[client.connection_id]
        others.discard(instance)
        if not others:
            del self._by_connection[client.connection_id]
