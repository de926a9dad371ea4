"""Measure what checking records costs the write path: topics with `record.validation` full and
header get the same batches in alternating windows, in one process.

Requests are made once and sent over a bare socket, so that the CPU is that of the broker. For
compressed batches the limit is the CPU without the check plus 1.2 times their decompression.
"""

import itertools
import json
import socket
import statistics
import time
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from benchmarks import clients, harness
from benchmarks.harness import Measure
from penstock.protocol import apis
from penstock.protocol.batch.compression import Compression, ReusingInflater
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.framing import decode_body, encode_request_frame, parse_response_header
from penstock.protocol.gen import produce

CHECKED: Final = "full"
UNCHECKED: Final = "header"
REQUESTS: Final = 30
IN_FLIGHT: Final = 4
_BATCH_BYTES: Final = 1_000_000
_RECORD_OVERHEAD_BYTES: Final = 20
_FIELD_BYTES: Final = 16
_VERSION: Final = 9
_EXTRA_OF_DECOMPRESSION: Final = 1.2


def cost(pairs_count: int) -> list[Measure]:
    """Return throughput and CPU for 1 KB and 100-byte records, and CPU for each codec."""
    found: list[Measure] = []
    for record_bytes in (1_000, 100):
        batch, plain_bytes = _batch(record_bytes, Compression.NONE)
        pairs = list(_pairs(batch, plain_bytes, pairs_count))
        title = f"produce {record_bytes} B records"
        found += [
            Measure(
                f"{title}: throughput with checks / without",
                statistics.median(checked.mb_per_s / bare.mb_per_s for checked, bare in pairs),
                "",
                0.95,
                "higher",
                1.0,
            ),
            Measure(
                f"{title}: CPU for each MB with checks / without",
                statistics.median(checked.cpu_us / bare.cpu_us for checked, bare in pairs),
                "",
                1.1,
                "lower",
                1.0,
                f"{statistics.median(checked.cpu_us for checked, _ in pairs):.0f} us",
            ),
        ]
    return found + [_codec(codec, pairs_count) for codec in Compression if codec]


def _codec(codec: Compression, pairs_count: int) -> Measure:
    batch, plain_bytes = _batch(1_000, codec)
    pairs = list(_pairs(batch, plain_bytes, pairs_count))
    decompress_us = _decompress_us(batch, codec)
    return Measure(
        f"produce {codec.name.lower()}: CPU for each MB of records",
        statistics.median(checked.cpu_us for checked, _ in pairs),
        "us",
        1.0,
        "lower",
        statistics.median(bare.cpu_us for _, bare in pairs)
        + _EXTRA_OF_DECOMPRESSION * decompress_us,
        f"{decompress_us:.0f} us of it decompression",
    )


def _batch(record_bytes: int, codec: Compression) -> tuple[bytes, int]:
    """Return a batch of records that compress like JSON, and its bytes without compression."""
    now_ms, rng = int(time.time() * 1_000), Random(7)
    records, size_bytes = list[Record](), 0
    for number in itertools.count():
        if size_bytes >= _BATCH_BYTES:
            break
        fields = range(record_bytes // _FIELD_BYTES + 1)
        value = json.dumps({f"field{at}": rng.randrange(10**6) for at in fields})
        line = value[:record_bytes].encode()
        records.append(Record(number, now_ms + number, b"%d" % number, line))
        size_bytes += record_bytes + _RECORD_OVERHEAD_BYTES
    plain = encode_batch(records)
    return bytes(encode_batch(records, compression=codec)), len(plain)


class _Window:
    """What one window took, for each MB of records."""

    def __init__(self, seconds: float, cpu_s: float, plain_bytes: int) -> None:
        megabytes = REQUESTS * plain_bytes / 1e6
        self.mb_per_s = megabytes / seconds
        self.cpu_us = cpu_s * 1e6 / megabytes


def _pairs(batch: bytes, plain_bytes: int, pairs_count: int) -> Iterator[tuple[_Window, _Window]]:
    """Yield (with checks, without)."""
    with harness.server(store="memory:", log_cache_bytes_max=3 << 30) as system:
        for topic in (CHECKED, UNCHECKED):
            config = {"record.validation": topic}
            clients.create_topic(system.bootstrap, name=topic, config=config)
        host, _, port = system.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            frames = {topic: _frame(topic, batch) for topic in (CHECKED, UNCHECKED)}

            def window(topic: str) -> _Window:
                before, began = system.ask()["cpu_s"], time.perf_counter()
                _send(connection, frames[topic])
                took = time.perf_counter() - began
                return _Window(took, system.ask()["cpu_s"] - before, plain_bytes)

            for topic in (CHECKED, UNCHECKED):
                window(topic)
            for number in range(pairs_count):
                if number % 2:
                    bare = window(UNCHECKED)
                    yield window(CHECKED), bare
                else:
                    checked = window(CHECKED)
                    yield checked, window(UNCHECKED)


def _frame(topic: str, batch: bytes) -> bytes:
    part = produce.PartitionProduceData(index=0, records=memoryview(batch))
    data = produce.TopicProduceData(name=topic, partition_data=[part])
    request = produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    return bytes(
        encode_request_frame(
            apis.PRODUCE, _VERSION, 7, produce.encode_request, request, client_id="bench"
        )
    )


def _send(connection: socket.socket, frame: bytes) -> None:
    sent = 0
    for answered in range(REQUESTS):
        while sent < min(REQUESTS, answered + IN_FLIGHT):
            connection.sendall(frame)
            sent += 1
        size = int.from_bytes(_read(connection, 4), "big")
        answer = memoryview(_read(connection, size))
        _, at = parse_response_header(apis.PRODUCE, _VERSION, answer)
        body: Any = decode_body(produce.decode_response, answer, at, _VERSION)
        (found,) = body.responses[0].partition_responses
        assert not found.error_code, found


def _read(connection: socket.socket, count: int) -> bytearray:
    data = bytearray()
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data


def _decompress_us(batch: bytes, codec: Compression) -> float:
    """Return the CPU of decompressing a MB of records, into memory that is reused."""
    inflater, data = ReusingInflater(), memoryview(batch)[HEADER_BYTES:]
    size_bytes = len(inflater.decompress(codec, data, 64 << 20))
    found = []
    for _ in range(30):
        began = time.thread_time()
        inflater.decompress(codec, data, 64 << 20)
        found.append(time.thread_time() - began)
    return statistics.median(found) * 1e12 / size_bytes
