"""The Kafka client behind the helpers: few records, complete answers, and readable errors. It uses
the broker's own codecs, so that tests need no client library.

Invariants: records that `produce` returned are durable, and in the log once (idempotent producer,
the same batch and sequence on every attempt). `consume` returns everything from the beginning of
the topic, in the order of each partition. Every call ends by its deadline. It finds leaders again
after they move, die or are elected. Limits: one request at a time. Must not be used for throughput.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, TypeVar
from uuid import UUID

from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.errors import KafkaFailed, UsageError
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import Record as BatchRecord
from penstock.protocol.batch.records import decode_records, encode_batch
from penstock.protocol.error_codes import ErrorCode, explain, known_code
from penstock.protocol.gen import create_topics, fetch, init_producer_id, metadata, produce
from penstock.protocol.primitives import Reader, Writer
from penstock.testing.records import Position, Record, partition_of

_RETRY_S: Final = 0.01
_ANSWER_S: Final = 10.0
"""The deadline of requests that do not depend on the object store."""
_POLL_MS: Final = 20
"""The wait of one fetch at a leader without new records, while others may have some."""
_FETCH_BYTES: Final = 16 << 20
_BATCH_BYTES: Final = 512 * 1024
"""Below every `max.message.bytes` of topics unless a test sets a smaller one."""
_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")


class RecordsMissing(KafkaFailed):
    """Fewer records than a test waits for; `records` are those that arrived."""

    def __init__(self, message: str, records: Sequence[Record]) -> None:
        super().__init__(message)
        self.records = list(records)


class _Retriable(Exception):
    """A retriable failure; the text is the reason."""


class _Topic:
    """The leaders' addresses by partition; empty without a leader."""

    def __init__(self, found: metadata.MetadataResponseTopic, addresses: Mapping[int, str]) -> None:
        assert found.topic_id is not None
        self.topic_id: UUID = found.topic_id
        self.leaders = {
            part.partition_index: addresses.get(part.leader_id, "") for part in found.partitions
        }


class KafkaClient:
    """The client of a test run. Threads may share it. Their calls take turns, but `consume` lets
    others in between its requests.
    """

    def __init__(self, bootstrap_servers: str, security: ClientSecurity = PLAINTEXT) -> None:
        self._security = security
        self._bootstrap = bootstrap_servers.split(",")
        self._connections: dict[str, WireClient] = {}
        self._lock = threading.RLock()
        self._producer = (-1, -1)
        self._sequences: dict[tuple[UUID, int], int] = defaultdict(int)

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    # --- topics -----------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str], timeout_s: float
    ) -> None:
        configs = [create_topics.CreatableTopicConfig(key, value) for key, value in config.items()]
        topic = create_topics.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        request = create_topics.CreateTopicsRequest(
            topics=[topic], timeout_ms=int(timeout_s * 1_000)
        )

        def create() -> None:
            answer = self._ask_any(
                apis.CREATE_TOPICS,
                request,
                create_topics.encode_request,
                create_topics.decode_response,
            )
            result = answer.topics[0]
            _check(result.error_code, f"topic {name!r} was not created", result.error_message)

        self._retried(create, time.monotonic() + timeout_s)

    def _topic(self, name: str) -> _Topic:
        """Look up a topic. Raise KafkaFailed if it does not exist."""
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        answer = self._ask_any(
            apis.METADATA, request, metadata.encode_request, metadata.decode_response
        )
        found = answer.topics[0]
        if known_code(found.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            near = get_close_matches(name, self._names(), n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"create it first: penstock.topic({name!r})"
            )
            raise KafkaFailed(f"topic {name!r} does not exist; {hint}")
        _check(found.error_code, f"topic {name!r} cannot be looked up")
        return _Topic(
            found, {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        )

    def _names(self) -> list[str]:
        request = metadata.MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = self._ask_any(
            apis.METADATA, request, metadata.encode_request, metadata.decode_response
        )
        return [
            topic.name
            for topic in answer.topics
            if topic.name is not None and not topic.is_internal
        ]

    # --- produce ----------------------------------------------------------------------------------

    def produce(
        self, topic: str, records: Sequence[BatchRecord], partition: int | None, timeout_s: float
    ) -> list[Position]:
        """Produce records and return their positions in order. A partition of None is chosen by
        key. The `offset` of the given records is ignored.
        """
        deadline = time.monotonic() + timeout_s
        count = len(self._retried(lambda: self._topic(topic), deadline).leaders)
        if partition is not None and not 0 <= partition < count:
            raise UsageError(
                f"topic {topic!r} has no partition {partition}: they are 0 to {count - 1}"
            )
        chosen = [
            partition_of(record.key, index, count) if partition is None else partition
            for index, record in enumerate(records)
        ]
        by_partition: dict[int, list[int]] = defaultdict(list)
        for index, number in enumerate(chosen):
            by_partition[number].append(index)
        positions: dict[int, Position] = {}
        with self._lock:
            for number, indexes in by_partition.items():
                for some in _chunks(indexes, records):
                    base_offset = self._append(
                        topic, number, [records[index] for index in some], deadline
                    )
                    positions |= {
                        index: Position(number, base_offset + delta)
                        for delta, index in enumerate(some)
                    }
        return [positions[index] for index in range(len(records))]

    def _append(
        self, topic: str, partition: int, records: Sequence[BatchRecord], deadline: float
    ) -> int:
        """Produce one batch. Return its base offset."""
        if self._producer == (-1, -1):
            self._producer = self._retried(self._new_producer, deadline)
        topic_id = self._retried(lambda: self._topic(topic), deadline).topic_id
        key = (topic_id, partition)
        producer_id, producer_epoch = self._producer
        batch = encode_batch(
            [record._replace(offset=delta) for delta, record in enumerate(records)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequences[key],
        )
        try:
            base_offset = self._retried(
                lambda: self._send_batch(topic, key, batch, deadline), deadline
            )
        except KafkaFailed:
            # The batch may or may not be in the log, so the next sequence is unknown, and the next
            # batch needs a new producer.
            self._producer = (-1, -1)
            self._sequences.clear()
            raise
        self._sequences[key] += len(records)
        return base_offset

    def _send_batch(
        self, topic: str, key: tuple[UUID, int], batch: bytearray, deadline: float
    ) -> int:
        """Send one produce request to the leader of a partition. Return the base offset."""
        topic_id, partition = key
        left_s = max(_RETRY_S, deadline - time.monotonic())
        data = produce.TopicProduceData(
            topic_id, partition_data=[produce.PartitionProduceData(partition, batch)]
        )
        request = produce.ProduceRequest(acks=-1, timeout_ms=int(left_s * 1_000), topic_data=[data])
        answer = self._ask(
            self._leader(topic, partition),
            apis.PRODUCE,
            request,
            produce.encode_request,
            produce.decode_response,
            timeout_s=left_s,
        )
        result = answer.responses[0].partition_responses[0]
        _check(
            result.error_code,
            f"{topic}-{partition} did not take the records",
            result.error_message,
        )
        return result.base_offset

    def _new_producer(self) -> tuple[int, int]:
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        answer = self._ask_any(
            apis.INIT_PRODUCER_ID,
            request,
            init_producer_id.encode_request,
            init_producer_id.decode_response,
        )
        _check(answer.error_code, "no producer id was given")
        return answer.producer_id, answer.producer_epoch

    # --- consume ----------------------------------------------------------------------------------

    def consume(self, topic: str, count: int | None, timeout_s: float) -> list[Record]:
        """Return all records, sorted by partition and offset, as soon as there are at least
        `count`.
        """
        deadline = time.monotonic() + timeout_s
        read: dict[int, list[Record]] = {}
        positions: dict[int, int] = {}
        problem = ""
        while True:
            try:
                left_s = max(_RETRY_S, deadline - time.monotonic())
                caught_up = self._fetch_round(
                    topic, read, positions, left_s=left_s, is_waiting=bool(read)
                )
                arrived = sum(map(len, read.values()))
                if caught_up and arrived >= (count or 0):
                    return [record for number in sorted(read) for record in read[number]]
                problem = ""
            except _Retriable as error:
                problem = f"; {error}"
                self._pause(deadline)
            if time.monotonic() > deadline:
                arrived = sum(map(len, read.values()))
                wanted = "the records there are" if count is None else f"{count} records"
                offsets = ", ".join(
                    f"{number}: {offset}" for number, offset in sorted(positions.items())
                )
                message = (
                    f"topic {topic!r}: {arrived} of {wanted} arrived within {timeout_s:g} s"
                    f" (read up to offsets {{{offsets}}}{problem})"
                )
                raise RecordsMissing(
                    message, [record for number in sorted(read) for record in read[number]]
                )

    def _fetch_round(
        self,
        topic: str,
        read: dict[int, list[Record]],
        positions: dict[int, int],
        *,
        left_s: float,
        is_waiting: bool,
    ) -> bool:
        """Fetch once from each leader. Return whether all partitions were read to their ends."""
        with self._lock:
            found = self._topic(topic)
        by_leader: dict[str, list[int]] = defaultdict(list)
        for number, address in found.leaders.items():
            read.setdefault(number, [])
            positions.setdefault(number, 0)
            if not address:
                raise _Retriable(f"{topic}-{number} has no leader")
            by_leader[address].append(number)
        ends: dict[int, int] = {}
        wait_ms = _POLL_MS if is_waiting else 0
        for address, numbers in by_leader.items():
            for part in self._fetch(
                address, found.topic_id, numbers, positions, wait_ms=wait_ms, timeout_s=left_s
            ):
                self._add_records(topic, part, read, positions)
                ends[part.partition_index] = part.high_watermark
        return all(positions[number] >= ends.get(number, 1 << 62) for number in found.leaders)

    def _fetch(
        self,
        address: str,
        topic_id: UUID,
        numbers: Sequence[int],
        positions: Mapping[int, int],
        *,
        wait_ms: int,
        timeout_s: float,
    ) -> list[fetch.PartitionData]:
        """Fetch partitions of one topic from their leader."""
        partitions = [
            fetch.FetchPartition(
                number, fetch_offset=positions[number], partition_max_bytes=_FETCH_BYTES
            )
            for number in numbers
        ]
        request = fetch.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            topics=[fetch.FetchTopic(topic_id=topic_id, partitions=partitions)],
        )
        with self._lock:
            answer = self._ask(
                address,
                apis.FETCH,
                request,
                fetch.encode_request,
                fetch.decode_response,
                timeout_s=timeout_s,
            )
        _check(answer.error_code, f"the broker at {address} refuses to fetch")
        return [part for topic in answer.responses for part in topic.partitions]

    def _add_records(
        self,
        topic: str,
        part: fetch.PartitionData,
        read: dict[int, list[Record]],
        positions: dict[int, int],
    ) -> None:
        number = part.partition_index
        if known_code(part.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE:
            positions[number] = max(part.log_start_offset, 0)
            return
        _check(part.error_code, f"{topic}-{number} cannot be read")
        data = memoryview(part.records or b"")
        for at, header in iter_headers(data):
            for record in (
                () if header.is_control else decode_records(data[at : at + header.size_bytes])
            ):
                if record.offset >= positions[number]:
                    headers = dict(record.headers)
                    read[number].append(
                        Record(
                            topic,
                            number,
                            record.offset,
                            record.timestamp_ms,
                            record.key,
                            record.value,
                            headers,
                        )
                    )
            positions[number] = max(positions[number], header.next_offset)

    # --- asking -----------------------------------------------------------------------------------

    def _leader(self, topic: str, partition: int) -> str:
        address = self._topic(topic).leaders.get(partition, "")
        if not address:
            raise _Retriable(f"{topic}-{partition} has no leader")
        return address

    def _retried(self, call: Callable[[], _ResponseT], deadline: float) -> _ResponseT:
        while True:
            try:
                with self._lock:
                    return call()
            except _Retriable as error:
                if time.monotonic() > deadline:
                    raise KafkaFailed(f"timed out: {error}") from None
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        time.sleep(max(0.0, min(_RETRY_S, deadline - time.monotonic())))

    def _ask_any(
        self,
        api: ApiSpec,
        request: _RequestT,
        encode: Callable[[Writer, _RequestT, int], None],
        decode: Callable[[Reader, int], _ResponseT],
    ) -> _ResponseT:
        """Return the answer of the first broker that answers."""
        problem = _Retriable("no broker")
        for address in self._bootstrap:
            try:
                return self._ask(address, api, request, encode, decode)
            except _Retriable as error:
                problem = error
        raise problem

    def _ask(
        self,
        address: str,
        api: ApiSpec,
        request: _RequestT,
        encode: Callable[[Writer, _RequestT, int], None],
        decode: Callable[[Reader, int], _ResponseT],
        *,
        timeout_s: float = _ANSWER_S,
    ) -> _ResponseT:
        """Send one request. Reopen a broken connection, because the broker may have been
        restarted.
        """
        is_new = address not in self._connections
        try:
            if is_new:
                self._connections[address] = WireClient(address, self._security)
            return self._connections[address].ask(api, request, encode, decode, timeout_s)
        except KafkaFailed as error:
            connection = self._connections.pop(address, None)
            if connection is not None:
                connection.close()
            raise _Retriable(str(error)) from None


def _chunks(indexes: Sequence[int], records: Sequence[BatchRecord]) -> list[list[int]]:
    """Split records into runs that fit into one batch each; a larger record gets its own."""
    chunks: list[list[int]] = []
    room = 0
    for index in indexes:
        size_bytes = len(records[index].value or b"") + len(records[index].key or b"") + 64
        if size_bytes > room:
            chunks.append([])
            room = _BATCH_BYTES
        chunks[-1].append(index)
        room -= size_bytes
    return chunks


def _check(code: int, failed: str, message: str | None = None) -> None:
    """Raise _Retriable for errors that Kafka's clients retry, and KafkaFailed for the others."""
    if not code:
        return
    text = f"{failed}: {explain(code, message)}"
    if known_code(code).retriable:
        raise _Retriable(text)
    raise KafkaFailed(text)
