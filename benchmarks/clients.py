"""The measuring clients: confluent-kafka for throughput and latency, bare sockets for small
requests.

Each function runs for a bounded time and returns figures. The clients run in this process, one at a
time, so compared systems get the same client.
"""

import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.framing import decode_body, encode_request_frame, parse_response_header
from penstock.protocol.gen import produce

TOPIC = "bench"
RECORD_BYTES = 1024
_PRODUCE_VERSION = 9


@dataclass(frozen=True, slots=True)
class Rate:
    records: int
    seconds: float
    record_bytes: int = RECORD_BYTES

    @property
    def mb(self) -> float:
        return self.records * self.record_bytes / 1e6

    @property
    def mb_per_s(self) -> float:
        return self.mb / self.seconds


def create_topic(
    bootstrap: str,
    partitions: int = 1,
    name: str = TOPIC,
    config: Mapping[str, str] | None = None,
) -> None:
    # Keep a reference until the response, because the futures end with the client.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, partitions, 1, config=dict(config or {}))
    for future in admin.create_topics([topic]).values():
        future.result(30)


def producer(bootstrap: str, **overrides: object) -> Producer:
    config: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "linger.ms": 20,
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        "message.max.bytes": 1_000_000,
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": 400_000,
    }
    return Producer({**config, **overrides})


def produce_for(
    bootstrap: str,
    seconds: float,
    *,
    bytes_per_s: float | None = None,
    partitions: int = 1,
    settings: Mapping[str, object] | None = None,
    topic: str = TOPIC,
    record_bytes: int = RECORD_BYTES,
) -> Rate:
    """Produce 1 KiB records in batches of about 1 MB as fast as possible (or at a rate), until all
    are acknowledged. settings: additional settings of the producer.
    """
    client, value, failed = producer(bootstrap, **(settings or {})), bytes(record_bytes), 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal failed
        failed += error is not None

    warm = time.perf_counter()
    client.produce(topic, value, partition=0)
    client.flush(30)
    assert time.perf_counter() - warm < 30
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        if bytes_per_s is not None and count * record_bytes > elapsed * bytes_per_s:
            client.poll(0.001)
            continue
        try:
            for _ in range(200):
                client.produce(topic, value, partition=count // 1_000 % partitions)
                count += 1
        except BufferError:
            client.poll(0.005)
        client.poll(0)
    left = client.flush(60)
    took = time.perf_counter() - began
    # Callbacks for each record would measure Python instead. One last record per partition shows
    # whether all were written.
    for partition in range(partitions):
        client.produce(topic, value, partition=partition, on_delivery=delivered)
    left += client.flush(60)
    assert left + failed == 0, f"{left} records were not acknowledged, {failed} failed"
    return Rate(count, took, record_bytes)


def consumer(bootstrap: str, topic: str = TOPIC, partitions: int = 1) -> Consumer:
    """Return a consumer of all partitions from the beginning, tuned for throughput."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4 << 20,
            "fetch.max.bytes": 32 << 20,
            "queued.max.messages.kbytes": 256 << 10,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,  # the default of 1 s would distort the measurement
            "check.crcs": False,
        }
    )
    client.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    return client


def consume_all(
    bootstrap: str,
    count: int,
    partitions: int = 1,
    *,
    topic: str = TOPIC,
    record_bytes: int = RECORD_BYTES,
) -> Rate:
    """Consume `count` records from the beginning without reading their contents."""
    client = consumer(bootstrap, topic, partitions)
    first = client.consume(1, 30)
    began, seen = time.perf_counter(), len(first)
    while seen < count:
        messages = client.consume(min(10_000, count - seen), 10)
        if not messages:
            raise RuntimeError(f"nothing more after {seen} of {count} records")
        seen += len(messages)
    seconds = time.perf_counter() - began
    client.close()
    return Rate(seen, seconds, record_bytes)


def end_to_end_latencies_ms(
    bootstrap: str, per_second: int, seconds: float, topic: str = TOPIC
) -> list[float]:
    """Measure from `produce` until the consumer returns the record, one record at a time at a
    constant rate.
    """
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "latency",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    reader.assign([TopicPartition(topic, 0, OFFSET_END)])
    writer = producer(bootstrap, **{"linger.ms": 0, "batch.num.messages": 1})
    _receive(reader, writer, topic)
    latencies: list[float] = []
    began = time.perf_counter()
    for number in range(int(per_second * seconds)):
        pause = began + number / per_second - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        sent = time.perf_counter()
        writer.produce(topic, b"x" * 100, partition=0)
        writer.poll(0)
        message = reader.poll(5)
        assert message is not None
        assert message.error() is None
        latencies.append((time.perf_counter() - sent) * 1_000)
    reader.close()
    writer.flush(10)
    return latencies


def _receive(reader: Consumer, writer: Producer, topic: str) -> None:
    """Wait for a record that was sent after the first poll, and discard earlier ones."""
    deadline = time.perf_counter() + 30
    while time.perf_counter() < deadline:
        writer.produce(topic, b"warm", partition=0)
        writer.flush(5)
        if (message := reader.poll(0.5)) is not None and message.error() is None:
            while reader.poll(0.5) is not None:
                pass
            return
    raise RuntimeError("the consumer never received a record")


def produce_latencies_ms(
    bootstrap: str, bytes_per_s: float, seconds: float, *, topic: str = TOPIC, partitions: int = 1
) -> list[float]:
    """Measure from `produce` to the acknowledgment: 1 KiB records at a constant rate, a batch every
    5 ms.
    """
    client, latencies, value = (
        producer(bootstrap, **{"linger.ms": 5}),
        list[float](),
        bytes(RECORD_BYTES),
    )
    for partition in range(partitions):
        client.produce(topic, value, partition=partition)
    client.flush(60)

    def sent_at(moment: float) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, _: Message) -> None:
            assert error is None, error
            latencies.append((time.perf_counter() - moment) * 1_000)

        return delivered

    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        due = int(elapsed * bytes_per_s / RECORD_BYTES)
        for number in range(count, due):
            client.produce(
                topic,
                value,
                partition=number % partitions,
                on_delivery=sent_at(time.perf_counter()),
            )
        count = due
        client.poll(0.002)
    client.flush(60)
    return latencies


def small_requests_per_s(bootstrap: str, connections: int, seconds: float) -> float:
    """Send one 100-byte record per request, with one request in flight per connection, over bare
    sockets.
    """
    host, _, port = bootstrap.rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(connections)]
    return small_requests_over(sockets, seconds)


def small_requests_over(sockets: Sequence[socket.socket], seconds: float) -> float:
    """Do the same as `small_requests_per_s` over these connections, then close them."""
    return _responses_per_s(sockets, seconds, _produce_frame(1, 100))


def batches_over(sockets: Sequence[socket.socket], seconds: float) -> Rate:
    """Send batches of about 1 MB in the same way. TLS sends them in records of 16 KiB, as the Java
    client does; librdkafka sends a seventh of the 1 KiB values in TLS records of their own.
    """
    count = 960
    responses = _responses_per_s(sockets, seconds, _produce_frame(count, RECORD_BYTES))
    return Rate(round(responses * seconds) * count, seconds)


def _responses_per_s(sockets: Sequence[socket.socket], seconds: float, frame: bytes) -> float:
    selector = selectors.DefaultSelector()
    for connection in sockets:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(frame)
        _check(connection.recv(4_096))
        selector.register(connection, selectors.EVENT_READ)
        connection.sendall(frame)
    responses_count = 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for key, _ in selector.select(1):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if not connection.recv(4_096):
                raise RuntimeError("the server closed the connection")
            responses_count += 1
            connection.sendall(frame)
    for connection in sockets:
        connection.close()
    return responses_count / elapsed


def _check(reply: bytes) -> None:
    """Raise an error unless this is a complete response that accepts a Produce request."""
    frame = memoryview(reply)[4:]
    _, offset = parse_response_header(apis.PRODUCE, _PRODUCE_VERSION, frame)
    response = decode_body(produce.decode_response, frame, offset, _PRODUCE_VERSION)
    codes = {part.error_code for topic in response.responses for part in topic.partition_responses}
    if codes != {0}:
        raise RuntimeError(f"Produce failed with the error codes {codes}")


def _produce_frame(count: int, record_bytes: int) -> bytes:
    """Return a Produce request with a batch of this number of records."""
    now_ms = int(time.time() * 1_000)
    batch = encode_batch([Record(at, now_ms, None, bytes(record_bytes)) for at in range(count)])
    partition = produce.PartitionProduceData(index=0, records=memoryview(batch))
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[produce.TopicProduceData(name=TOPIC, partition_data=[partition])],
    )
    return bytes(
        encode_request_frame(
            apis.PRODUCE, _PRODUCE_VERSION, 7, produce.encode_request, request, client_id="bench"
        )
    )
