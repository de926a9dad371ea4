"""The Kafka client of the test helpers, which uses the broker's codecs. It is not meant for high
throughput.

Records that `produce` returned are durable and in the log once. `consume` returns everything from
the beginning of the topic, in the order of each partition. Every call ends by its deadline; leaders
are looked up again after moves and failures.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.errors import UsageError
from penstock.protocol import apis
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import Record as BatchRecord
from penstock.protocol.batch.records import decode_records, encode_batch
from penstock.protocol.client.brokers import Brokers
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import KafkaFailed, Moved
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import create_topics, fetch, init_producer_id, produce
from penstock.testing.records import Position, Record, partition_of

_RETRY_S: Final = 0.01
_RESPONSE_S: Final = 10.0
"""The deadline of requests that do not depend on the object store."""
_POLL_MS: Final = 20
"""Maximum wait of a fetch from a leader without new records; it is short, because other leaders may
have new records.
"""
_FETCH_BYTES: Final = 16 << 20
_BATCH_BYTES: Final = 512 * 1024
"""Batch size below the `max.message.bytes` of every topic, unless a test sets a smaller limit."""
_RETRIABLE: Final = frozenset(code for code in ErrorCode if code.retriable)
_T = TypeVar("_T")


class RecordsMissing(KafkaFailed):
    """Fewer records arrived than the test waited for; `records` contains those that did."""

    def __init__(self, message: str, records: Sequence[Record]) -> None:
        super().__init__(message)
        self.records = list(records)


class _Topic(NamedTuple):
    topic_id: UUID
    partitions: list[int]


class _Brokers(Brokers):
    def connect(self) -> Connection:
        """Connect, and retry while no broker is reachable, because a test may restart brokers."""
        try:
            return super().connect()
        except KafkaFailed as error:
            raise Moved(str(error)) from None


class KafkaClient:
    """The client of a test run. Threads may share it. Calls are serialized, but other calls may run
    between the requests of `consume`.
    """

    def __init__(self, bootstrap_servers: str, security: ClientSecurity = PLAINTEXT) -> None:
        self._brokers = _Brokers(bootstrap_servers, security, moved=_RETRIABLE)
        self._lock = threading.RLock()
        self._producer = (-1, -1)
        self._sequences: dict[tuple[UUID, int], int] = defaultdict(int)

    def close(self) -> None:
        with self._lock:
            self._brokers.reset()

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
            response = self._brokers.send_request(
                apis.CREATE_TOPICS,
                request,
                create_topics.CreateTopicsResponse,
                timeout_s=_RESPONSE_S,
            )
            result = response.topics[0]
            failed = f"topic {name!r} was not created"
            self._brokers.check(result.error_code, result.error_message, failed)

        self._retried(create, time.monotonic() + timeout_s)

    def _topic(self, name: str) -> _Topic:
        """Look up a topic. Raise KafkaFailed if it does not exist."""
        response = self._brokers.metadata([name], _RESPONSE_S)
        found = response.topics[0]
        if known_code(found.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            near = get_close_matches(name, self._names(), n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"create it first: penstock.topic({name!r})"
            )
            raise KafkaFailed(f"topic {name!r} does not exist; {hint}")
        self._brokers.check(found.error_code, None, f"topic {name!r} cannot be looked up")
        assert found.topic_id is not None
        return _Topic(found.topic_id, [part.partition_index for part in found.partitions])

    def _names(self) -> list[str]:
        return [
            topic.name
            for topic in self._brokers.metadata(None, _RESPONSE_S).topics
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
        count = len(self._retried(lambda: self._topic(topic), deadline).partitions)
        if partition is not None and not 0 <= partition < count:
            raise UsageError(
                f"topic {topic!r} has no partition {partition}: partitions are 0 to {count - 1}"
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
            # It is unknown whether the batch is in the log, and therefore which sequence number is
            # next, so the next batch uses a new producer id.
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
        response = self._brokers.send_request(
            apis.PRODUCE,
            request,
            produce.ProduceResponse,
            node=self._brokers.leader(topic, partition),
            timeout_s=left_s,
            version=apis.PRODUCE.max,
        )
        result = response.responses[0].partition_responses[0]
        failed = f"{topic}-{partition} rejected the records"
        self._brokers.check(result.error_code, result.error_message, failed)
        return result.base_offset

    def _new_producer(self) -> tuple[int, int]:
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        response = self._brokers.send_request(
            apis.INIT_PRODUCER_ID,
            request,
            init_producer_id.InitProducerIdResponse,
            timeout_s=_RESPONSE_S,
        )
        self._brokers.check(response.error_code, None, "no producer id was given")
        return response.producer_id, response.producer_epoch

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
            except Moved as error:
                problem = f"; {error}"
                time.sleep(_RETRY_S)
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
            by_leader = self._brokers.by_leader((topic, number) for number in found.partitions)
        for number in found.partitions:
            read.setdefault(number, [])
            positions.setdefault(number, 0)
        ends: dict[int, int] = {}
        wait_ms = _POLL_MS if is_waiting else 0
        for leader, keys in by_leader.items():
            numbers = [number for _, number in keys]
            for part in self._fetch(
                leader, found.topic_id, numbers, positions, wait_ms=wait_ms, timeout_s=left_s
            ):
                self._add_records(topic, part, read, positions)
                ends[part.partition_index] = part.high_watermark
        return all(positions[number] >= ends.get(number, 1 << 62) for number in found.partitions)

    def _fetch(
        self,
        leader: int,
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
            response = self._brokers.send_request(
                apis.FETCH,
                request,
                fetch.FetchResponse,
                node=leader,
                timeout_s=timeout_s,
                version=apis.FETCH.max,
            )
            failed = f"broker {leader} refuses to fetch"
            self._brokers.check(response.error_code, None, failed)
        return [part for topic in response.responses for part in topic.partitions]

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
        with self._lock:
            self._brokers.check(part.error_code, None, f"{topic}-{number} cannot be read")
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

    def _retried(self, call: Callable[[], _T], deadline: float) -> _T:
        def in_turn() -> _T:
            with self._lock:
                return call()

        try:
            return self._brokers.retried(in_turn, deadline, _RETRY_S)
        except Moved as error:
            raise KafkaFailed(f"timed out: {error}") from None


def _chunks(indexes: Sequence[int], records: Sequence[BatchRecord]) -> list[list[int]]:
    """Split records into runs that fit into one batch each; a larger record gets its own batch."""
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
