"""Measure the CPU time of record validation (`record.validation=full` compared with `header`).

For compressed batches the limit is the CPU time without validation plus 1.2 times that of their
decompression. Windows alternate in the order A B B A, and the result is the median of all pairs, so
other load on the machine cancels out.
"""

import itertools
import json
import math
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final, Literal, NamedTuple

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
REQUESTS: Final = 10
"""Number of requests in a window, which takes 10 to 30 ms."""
IN_FLIGHT: Final = 4
ROUNDS: Final = 3
"""Number of rounds; each has four windows per pair."""
PROCESSES: Final = 4
"""Number of brokers that share the pairs. A single one may be up to 15 % slower, depending on where
its memory lies.
"""
_BATCH_BYTES: Final = 1_000_000
_RECORD_OVERHEAD_BYTES: Final = 20
_FIELD_BYTES: Final = 16
_VERSION: Final = 9
_EXTRA_OF_DECOMPRESSION: Final = 1.2
_RECORD_BYTES: Final = (1_000, 100)
_MISSES_PERCENT: Final = 2.5
"""Share of samples whose median is above the interval, and of those whose median is below it."""


class _Window(NamedTuple):
    """Costs of a window per MB of records: wall time, the broker's CPU time, and the time of one
    decompression in this process.
    """

    wall_us: float
    cpu_us: float
    decompress_us: float


class _Pair(NamedTuple):
    """The medians of the windows with and without validation."""

    checked: _Window
    bare: _Window

    @property
    def throughput(self) -> float:
        return self.bare.wall_us / self.checked.wall_us

    @property
    def cpu(self) -> float:
        return self.checked.cpu_us / self.bare.cpu_us

    @property
    def extra(self) -> float:
        """Return the cost of validation relative to one decompression."""
        return (self.checked.cpu_us - self.bare.cpu_us) / self.bare.decompress_us

    @property
    def limit_us(self) -> float:
        return self.bare.cpu_us + _EXTRA_OF_DECOMPRESSION * self.bare.decompress_us

    @property
    def part_of_limit(self) -> float:
        return self.checked.cpu_us / self.limit_us


def cost(pairs_count: int) -> list[Measure]:
    """Return throughput and CPU time for two record sizes, and CPU time for each codec."""
    found: list[Measure] = []
    for record_bytes in _RECORD_BYTES:
        pairs = _all_pairs(record_bytes, Compression.NONE, pairs_count)
        title = f"produce {record_bytes} B records"
        name = f"{title}: throughput with checks / without"
        found.append(_ratio(name, pairs, lambda pair: pair.throughput, 0.95, is_least=True))
        name = f"{title}: CPU for each MB with checks / without"
        found.append(_ratio(name, pairs, lambda pair: pair.cpu, 1.1))
    for codec in Compression:
        for record_bytes in _RECORD_BYTES if codec else ():
            pairs = _all_pairs(record_bytes, codec, pairs_count)
            name = f"produce {record_bytes} B records, {codec.name.lower()}: CPU / limit"
            found.append(_ratio(name, pairs, lambda pair: pair.part_of_limit, 1.0))
    return found


def _ratio(
    name: str,
    pairs: Sequence[_Pair],
    ratio: Callable[[_Pair], float],
    bar: float,
    *,
    is_least: bool = False,
) -> Measure:
    values = [ratio(pair) for pair in pairs]
    low, high = interval(values)
    checked = statistics.median(pair.checked.cpu_us for pair in pairs)
    bare = statistics.median(pair.bare.cpu_us for pair in pairs)
    decompress = statistics.median(pair.bare.decompress_us for pair in pairs)
    note = f"{low:.3f} to {high:.3f}; {checked:.0f} us with, {bare:.0f} us without"
    if decompress:
        extra = statistics.median(pair.extra for pair in pairs)
        note += f", {decompress:.0f} us to decompress: with - without is {extra:.2f} times that"
    better: Literal["higher", "lower"] = "higher" if is_least else "lower"
    return Measure(name, statistics.median(values), "", bar, better, 1.0, note)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, for any distribution."""
    count, ordered = len(values), sorted(values)
    total, rank = 0.0, 0
    for rank in range(count // 2):
        total += math.comb(count, rank) / 2**count * 100
        if total > _MISSES_PERCENT:
            break
    return ordered[max(0, rank - 1)], ordered[count - max(1, rank)]


def _batch(record_bytes: int, codec: Compression) -> tuple[bytes, int]:
    """Return a batch of records that compress like JSON, and its uncompressed size."""
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


def _all_pairs(record_bytes: int, codec: Compression, pairs_count: int) -> list[_Pair]:
    count = pairs_count // PROCESSES
    return [pair for _ in range(PROCESSES) for pair in _pairs(record_bytes, codec, count)]


def _pairs(record_bytes: int, codec: Compression, pairs_count: int) -> Iterator[_Pair]:
    batch, plain_bytes = _batch(record_bytes, codec)
    megabytes = REQUESTS * plain_bytes / 1e6
    with harness.server(store="memory:", log_cache_bytes_max=3 << 30) as system:
        for topic in (CHECKED, UNCHECKED):
            config = {"record.validation": topic}
            clients.create_topic(system.bootstrap, name=topic, config=config)
        host, _, port = system.bootstrap.rpartition(":")
        clock = _cpu_clock(system.pid)
        decompress = _Decompression(batch, codec)
        with socket.create_connection((host, int(port))) as connection:
            frames = {topic: _frame(topic, batch) for topic in (CHECKED, UNCHECKED)}

            def window(topic: str) -> _Window:
                cpu_ns, began = time.clock_gettime_ns(clock), time.perf_counter_ns()
                _send(connection, frames[topic])
                wall_ns = time.perf_counter_ns() - began
                cpu_ns = time.clock_gettime_ns(clock) - cpu_ns
                decompress_us = decompress.run() / (plain_bytes / 1e6)
                return _Window(wall_ns / 1e3 / megabytes, cpu_ns / 1e3 / megabytes, decompress_us)

            for topic in (CHECKED, UNCHECKED):
                window(topic)
            for _ in range(pairs_count):
                found: dict[str, list[_Window]] = {CHECKED: [], UNCHECKED: []}
                for first, second in ((CHECKED, UNCHECKED), (UNCHECKED, CHECKED)) * ROUNDS:
                    found[first].append(window(first))
                    found[second].append(window(second))
                yield _Pair(_median(found[CHECKED]), _median(found[UNCHECKED]))


def _median(windows: Sequence[_Window]) -> _Window:
    return _Window._make(statistics.median(values) for values in zip(*windows, strict=True))


def _cpu_clock(pid: int) -> int:
    """Return the CPU clock of all threads of a process (clock_getcpuclockid)."""
    return (~pid << 3) | 2


class _Decompression:
    """Decompresses a batch into memory that it reuses."""

    def __init__(self, batch: bytes, codec: Compression) -> None:
        self._inflater = ReusingInflater()
        self._data = memoryview(batch)[HEADER_BYTES:]
        self._codec = codec

    def run(self) -> float:
        """Return the CPU time in microseconds; 0 without compression."""
        if not self._codec:
            return 0.0
        began = time.thread_time_ns()
        self._inflater.decompress(self._codec, self._data, 64 << 20)
        return (time.thread_time_ns() - began) / 1e3


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
    for received in range(REQUESTS):
        while sent < min(REQUESTS, received + IN_FLIGHT):
            connection.sendall(frame)
            sent += 1
        size = int.from_bytes(_read(connection, 4), "big")
        response = memoryview(_read(connection, size))
        _, at = parse_response_header(apis.PRODUCE, _VERSION, response)
        body: Any = decode_body(produce.decode_response, response, at, _VERSION)
        (found,) = body.responses[0].partition_responses
        assert not found.error_code, found


def _read(connection: socket.socket, count: int) -> bytearray:
    data = bytearray()
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data
