"""A client that pushes its metrics (KIP-714) in single requests, with its own encoding. Only the
name and version are sent automatically, so a test specifies every field of each request.
"""

import struct
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from tests.support.wire import wire_client

GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY = 71, 72
_API_VERSIONS: Final = 18
ZERO: Final = UUID(int=0)
NO_TAGS: Final = b"\0"


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The response to GetTelemetrySubscriptions, by the names of its fields."""

    throttle_time_ms: int
    error_code: int
    client_instance_id: UUID
    subscription_id: int
    accepted_compression_types: tuple[int, ...]
    push_interval_ms: int
    telemetry_max_bytes: int
    delta_temporality: bool
    requested_metrics: tuple[str, ...]


class TelemetryClient:
    """A connection. software: the name and version that it sends first; None to send neither."""

    def __init__(
        self,
        address: str,
        client_id: str | None = "tests",
        software: tuple[str, str] | None = ("penstock-tests", "1.2.3"),
    ) -> None:
        self._client = wire_client(address)
        self._socket = self._client.connection
        self._client_id = client_id
        self._correlation_id = 0
        if software is not None:
            self.announced(*software)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def announced(self, name: str, version: str) -> dict[int, tuple[int, int]]:
        """Return the versions of each API that the broker advertises."""
        body = self._send_request(
            _API_VERSIONS, 3, _compact(name.encode()) + _compact(version.encode()) + NO_TAGS
        )
        error_code, count = struct.unpack_from(">hB", body)
        assert error_code == 0
        found = struct.iter_unpack(">hhhx", body[3 : 3 + 7 * (count - 1)])
        return {key: (first, last) for key, first, last in found}

    def get(self, client_instance_id: UUID = ZERO) -> Subscriptions:
        body = self._send_request(
            GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id.bytes + NO_TAGS
        )
        return _subscriptions(body[1:])

    def push(
        self,
        client_instance_id: UUID,
        subscription_id: int,
        metrics: bytes = b"",
        *,
        terminating: bool = False,
        compression_type: int = 0,
    ) -> int:
        """Push metrics and return the error code."""
        fixed = struct.pack(">i?b", subscription_id, terminating, compression_type)
        body = self._send_request(
            PUSH_TELEMETRY, 0, client_instance_id.bytes + fixed + _compact(metrics) + NO_TAGS
        )
        _tags, throttle_time_ms, error_code, _more_tags = struct.unpack(">BihB", body)
        assert throttle_time_ms == 0
        return int(error_code)

    def _send_request(self, api_key: int, version: int, body: bytes) -> bytes:
        """Send a request; return the response after its correlation id."""
        self._correlation_id += 1
        client_id = b"" if self._client_id is None else self._client_id.encode()
        length = -1 if self._client_id is None else len(client_id)
        header = struct.pack(">hhih", api_key, version, self._correlation_id, length)
        frame = header + client_id + NO_TAGS + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        size, correlation_id = struct.unpack(">ii", self._received(8))
        assert correlation_id == self._correlation_id
        return self._received(size - 4)

    def _received(self, requested: int) -> bytes:
        data = b""
        while len(data) < requested:
            more = self._socket.recv(requested - len(data))
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            data += more
        return data


def _compact(data: bytes) -> bytes:
    """Return a compact string, or compact bytes."""
    return _varint(len(data) + 1) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _subscriptions(body: bytes) -> Subscriptions:
    throttle_time_ms, error_code, instance, subscription_id, count = struct.unpack_from(
        ">ih16siB", body
    )
    offset = 27 + max(count - 1, 0)
    types = struct.unpack_from(f">{max(count - 1, 0)}b", body, 27)
    push_interval_ms, max_bytes, delta, names = struct.unpack_from(">ii?B", body, offset)
    offset += 10
    metrics: list[str] = []
    for _ in range(names - 1):
        length = body[offset] - 1
        metrics.append(body[offset + 1 : offset + 1 + length].decode())
        offset += 1 + length
    assert body[offset:] == NO_TAGS
    return Subscriptions(
        throttle_time_ms,
        error_code,
        UUID(bytes=instance),
        subscription_id,
        types,
        push_interval_ms,
        max_bytes,
        delta,
        tuple(metrics),
    )
