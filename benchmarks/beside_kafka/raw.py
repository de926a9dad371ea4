"""Produce and fetch over bare sockets in one thread, so that the broker is the bottleneck.

A producer repeats one encoded request. A consumer fetches the tail of one partition and takes its
next offset from the batch headers, without decoding records.
"""

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.framing import encode_request_frame, parse_response_header
from penstock.protocol.gen import fetch, produce
from penstock.protocol.primitives import Reader

_FETCH: Final = replace(apis.FETCH, max=12)
"""The last Fetch version with topic names; for Produce, it is version 12."""
_PRODUCE: Final = replace(apis.PRODUCE, max=12)
_SIZE: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_BATCH: Final = struct.Struct(">qi")
_BATCH_BYTES: Final = 12
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23
_PLACEHOLDER: Final = 0x0123456789ABCDEF
_FETCH_BYTES_MAX: Final = 8 << 20
_STALL_S: Final = 20.0
_LED_S: Final = 60.0
_AHEAD_RECORDS_MAX: Final = 64 * 256
STEADY_RECORDS: Final = 64
"""Records per batch at the constant rate."""


def batch_of(records: int, record_bytes: int) -> bytes:
    """Return an encoded batch with this number of records."""
    now_ms = int(time.time() * 1_000)
    rows = [Record(number, now_ms, None, bytes(record_bytes)) for number in range(records)]
    return bytes(encode_batch(rows))


def produce_frame(topic: str, batch: bytes, partition: int = 0) -> bytes:
    data = produce.PartitionProduceData(index=partition, records=memoryview(batch))
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )
    return bytes(
        encode_request_frame(_PRODUCE, 12, 7, produce.encode_request, request, client_id="bench")
    )


@dataclass(slots=True)
class _Connection:
    """A socket and the partially received response."""

    socket: socket.socket
    data: bytearray = field(default_factory=lambda: bytearray(_FETCH_BYTES_MAX + (1 << 20)))
    size: int = 0

    @classmethod
    def to(cls, bootstrap: str) -> "socket.socket":
        host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=_STALL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def received(self) -> memoryview | None:
        """Receive available bytes; return a response, without its length, once it is complete."""
        view = memoryview(self.data)
        length = _SIZE.unpack_from(self.data)[0] + _SIZE.size if self.size >= _SIZE.size else 0
        if length > len(self.data):
            raise RuntimeError(f"a response of {length} bytes")
        count = self.socket.recv_into(view[self.size : length or _SIZE.size])
        if not count:
            raise RuntimeError("the broker closed the connection")
        self.size += count
        if length and self.size == length:
            self.size = 0
            return view[_SIZE.size : length]
        return None


class _RefusedRead(RuntimeError):
    """A Fetch response contains an error."""


class TailConsumer:
    """Fetches one partition from its beginning. end: the offset after the last received record."""

    def __init__(self, bootstrap: str, topic: str, *, wait_ms: int = 500) -> None:
        self.end = self.received_bytes = self.responses_count = 0
        self._connection = _Connection(_Connection.to(bootstrap))
        partition = fetch.FetchPartition(
            partition=0, fetch_offset=_PLACEHOLDER, partition_max_bytes=_FETCH_BYTES_MAX
        )
        request = fetch.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES_MAX,
            topics=[fetch.FetchTopic(topic=topic, partitions=[partition])],
        )
        self._frame = bytearray(
            encode_request_frame(_FETCH, 12, 7, fetch.encode_request, request, client_id="bench")
        )
        self._offset_at = self._frame.index(_OFFSET.pack(_PLACEHOLDER))

    @property
    def socket(self) -> socket.socket:
        return self._connection.socket

    def send_request(self) -> None:
        _OFFSET.pack_into(self._frame, self._offset_at, self.end)
        self.socket.sendall(self._frame)

    def read(self) -> bool:
        """Receive available bytes, and send the next request after a response; return whether `end`
        has advanced.
        """
        reply = self._connection.received()
        if reply is None:
            return False
        _, body_at = parse_response_header(_FETCH, 12, reply)
        response = fetch.decode_response(Reader(reply, body_at), 12)
        partition = response.responses[0].partitions[0]
        if partition.error_code:
            raise _RefusedRead(f"Fetch: error {partition.error_code}")
        self.responses_count += 1
        before, records = self.end, memoryview(partition.records or b"")
        at = 0
        while at + _BATCH_BYTES <= len(records):
            base, length = _BATCH.unpack_from(records, at)
            if at + _BATCH_BYTES + length > len(records):
                break
            self.end = base + _LAST_DELTA.unpack_from(records, at + _LAST_DELTA_AT)[0] + 1
            at += _BATCH_BYTES + length
        self.received_bytes += at
        self.send_request()
        return self.end > before


class FixedProducer:
    """Repeatedly sends one request on one connection, with several in flight."""

    def __init__(self, bootstrap: str, frame: bytes) -> None:
        self.sent = self.acknowledged = 0
        self._connection = _Connection(_Connection.to(bootstrap), bytearray(64 << 10))
        self._frame = frame

    @property
    def socket(self) -> socket.socket:
        return self._connection.socket

    @property
    def in_flight(self) -> int:
        return self.sent - self.acknowledged

    def send(self) -> None:
        self.socket.sendall(self._frame)
        self.sent += 1

    def read(self) -> None:
        """Receive available data. Raises RuntimeError for a rejected batch."""
        reply = self._connection.received()
        if reply is None:
            return
        _, body_at = parse_response_header(_PRODUCE, 12, reply)
        response = produce.decode_response(Reader(reply, body_at), 12)
        code = response.responses[0].partition_responses[0].error_code
        if code:
            raise RuntimeError(f"Produce: error {code}")
        self.acknowledged += 1


@dataclass(frozen=True, slots=True)
class Delivered:
    """What consumers received. latencies_ms: of each batch, from its due time to its arrival."""

    seconds: float
    produced_mb: float
    consumed_mb: float
    latencies_ms: Sequence[float] = ()


def until_led(bootstrap: str, topic: str) -> None:
    """Wait until the broker leads partition 0 of a new topic. Raises TimeoutError."""
    deadline = time.monotonic() + _LED_S
    while time.monotonic() < deadline:
        reader = TailConsumer(bootstrap, topic, wait_ms=0)
        try:
            reader.send_request()
            while reader.responses_count == 0:
                reader.read()
        except _RefusedRead:
            time.sleep(0.02)
        else:
            return
        finally:
            reader.socket.close()
    raise TimeoutError(f"no broker leads {topic} after {_LED_S:.0f} s")


def fan_out(
    bootstrap: str,
    topic: str,
    consumers: int,
    seconds: float,
    *,
    records: int = 256,
    in_flight: int = 3,
) -> Delivered:
    """Produce batches of `records` 1 KB records for some time while consumers follow the tail, then
    wait until all consumers have everything.
    """
    batch = batch_of(records, 1_000)
    frame = produce_frame(topic, batch)
    readers = [TailConsumer(bootstrap, topic) for _ in range(consumers)]
    writer = FixedProducer(bootstrap, frame)
    selector = selectors.DefaultSelector()
    for end in (writer, *readers):
        selector.register(end.socket, selectors.EVENT_READ, end)
    try:
        for reader in readers:
            reader.send_request()
        began = time.perf_counter()
        writer.send()
        while True:
            elapsed = time.perf_counter() - began
            if elapsed > seconds + _STALL_S:
                raise TimeoutError("the consumers do not come to the end")
            # If the producer were too far ahead of the consumers, their reads would be cold.
            slowest = min(reader.end for reader in readers)
            is_near = writer.acknowledged * records - slowest < _AHEAD_RECORDS_MAX
            if elapsed < seconds and writer.in_flight < in_flight and is_near:
                writer.send()
            elif elapsed >= seconds and not writer.in_flight and slowest == writer.sent * records:
                break
            for key, _ in selector.select(0.01):
                key.data.read()
        consumed = sum(reader.received_bytes for reader in readers)
        return Delivered(elapsed, writer.sent * len(batch) / 1e6, consumed / 1e6)
    finally:
        _close(selector, [writer, *readers])


def steady(bootstrap: str, topic: str, mb_per_s: float, seconds: float) -> Delivered:
    """Produce batches of STEADY_RECORDS 1 KB records at a constant rate; measure from the due time
    of each batch until a consumer has it.
    """
    records = STEADY_RECORDS
    batch = batch_of(records, 1_000)
    interval = len(batch) / 1e6 / mb_per_s
    reader = TailConsumer(bootstrap, topic)
    writer = FixedProducer(bootstrap, produce_frame(topic, batch))
    selector = selectors.DefaultSelector()
    for end in (writer, reader):
        selector.register(end.socket, selectors.EVENT_READ, end)
    count, latencies = max(1, int(seconds / interval)), list[float]()
    try:
        reader.send_request()
        began = time.perf_counter()
        while len(latencies) < count:
            now = time.perf_counter() - began
            if now > seconds + _STALL_S:
                raise TimeoutError(f"{len(latencies)} of {count} batches arrived")
            while writer.sent < count and writer.sent * interval <= now and writer.in_flight < 64:
                writer.send()
            pause = writer.sent * interval - (time.perf_counter() - began)
            for key, _ in selector.select(max(0.0, min(pause, 0.05))):
                key.data.read()
            now = time.perf_counter() - began
            while len(latencies) < reader.end // records:
                latencies.append((now - len(latencies) * interval) * 1_000)
        return Delivered(
            now, count * len(batch) / 1e6, reader.received_bytes / 1e6, tuple(latencies)
        )
    finally:
        _close(selector, [writer, reader])


def small_requests(
    bootstrap: str, topic: str, connections: int, seconds: float
) -> tuple[int, float]:
    """Send one record of 100 bytes per request, with one request in flight per connection; return
    the number of responses and the seconds.
    """
    frame = produce_frame(topic, batch_of(1, 100))
    writers = [FixedProducer(bootstrap, frame) for _ in range(connections)]
    selector = selectors.DefaultSelector()
    for writer in writers:
        selector.register(writer.socket, selectors.EVENT_READ, writer)
    try:
        began = time.perf_counter()
        for writer in writers:
            writer.send()
        while (elapsed := time.perf_counter() - began) < seconds:
            for key, _ in selector.select(1):
                key.data.read()
                if not key.data.in_flight:
                    key.data.send()
        return sum(writer.acknowledged for writer in writers), elapsed
    finally:
        _close(selector, writers)


def _close(selector: selectors.BaseSelector, ends: Sequence[TailConsumer | FixedProducer]) -> None:
    selector.close()
    for end in ends:
        end.socket.close()
