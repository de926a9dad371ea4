"""Produce continuously, record every acknowledgement, and check the log against them.

async with ConfluentLoad(cluster.bootstrap, "t", [0, 1]) as load: await load.until_acknowledged(100)
check(load, await read_back(cluster.bootstrap, "t", [0, 1]))
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.support.waiting import PATIENCE_S, until

ACKNOWLEDGED_S = PATIENCE_S
"""librdkafka retries a record for this long (`message.timeout.ms`), so a longer stall fails the
load.
"""
PADDING = b"." * 400
PACE_S = 0.004
"""Pause between two records of a partition. Without it, the load would take all CPU while processes
start. Records that wait for a leader are still sent at once.
"""


class Load(ABC):
    """Sends records to each partition until the context exits.

    Record number n of a partition has the value `n`, padded. Leaving the context waits until every
    record is acknowledged.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: Sequence[int],
        *,
        patience_s: float = ACKNOWLEDGED_S,
        **settings: Any,
    ) -> None:
        """patience_s: how long an acknowledgement may take. settings: additional client
        settings.
        """
        self._patience_s = patience_s
        self.sent: dict[int, int] = dict.fromkeys(partitions, 0)
        self.acks: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
        """(number, offset) in the order of the acknowledgements."""
        self.failed: list[str] = []
        self.problem: deque[str] = deque(maxlen=8)
        """The latest errors reported by the client, which retries by itself."""
        self._bootstrap = bootstrap
        self._topic = topic
        self._settings = settings
        self._stopping = threading.Event()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        assert self._running is not None
        if kind is not None:
            self.failed.append("the test failed")
            self._running.cancel()
            # The test has already failed, so do not wait until the client has flushed.
            await asyncio.wait([self._running], timeout=1)
            return
        await self._running
        assert self.failed == []

    @property
    def acknowledged_count(self) -> int:
        """Return the lowest count among all partitions."""
        return min(map(len, self.acks.values()))

    async def until_acknowledged(self, more: int) -> None:
        """Wait until each partition has this many more acknowledgements."""
        assert self._running is not None
        requested = {partition: len(acks) + more for partition, acks in self.acks.items()}
        running = self._running
        with suppress(TimeoutError):
            await until(
                lambda: (
                    running.done()
                    or all(len(self.acks[part]) >= count for part, count in requested.items())
                ),
                self._patience_s,
            )
        assert not running.done(), running.exception()
        missing = {
            part: f"{len(self.acks[part])} of {count} acknowledged, {self.sent[part]} sent"
            for part, count in requested.items()
            if len(self.acks[part]) < count
        }
        assert not missing, (
            f"within {self._patience_s:g} s: {missing}; client: {list(self.problem)}"
        )

    @abstractmethod
    async def _run(self) -> None: ...

    def _next_value(self, partition: int) -> bytes:
        number = self.sent[partition]
        self.sent[partition] = number + 1
        return b"%d " % number + PADDING


class ConfluentLoad(Load):
    """An idempotent librdkafka producer in its own thread."""

    async def _run(self) -> None:
        await asyncio.to_thread(self._produce)

    def _produce(self) -> None:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 20,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": int(self._patience_s * 1_000),
            "log_level": 0,
            "error_cb": self._note_trouble,
        }
        producer = Producer(settings | self._settings)
        while not self._stopping.is_set() and not self.failed:
            if sum(self.sent.values()) - sum(map(len, self.acks.values())) < 5_000:
                for partition in self.sent:
                    producer.produce(
                        self._topic,
                        self._next_value(partition),
                        partition=partition,
                        on_delivery=self._delivered,
                    )
            producer.poll(0)
            self._stopping.wait(PACE_S)  # a pause between records
        if producer.flush(0 if self.failed else self._patience_s):
            self.failed.append("some records were neither acknowledged nor refused")

    def _note_trouble(self, error: Any) -> None:
        self.problem.append(f"{time.strftime('%H:%M:%S')} {error}")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            offset = message.offset()  # None for a duplicate whose offset the broker has forgotten
            self.acks[message.partition()].append(
                (number_of(message.value()), -1 if offset is None else offset)
            )


class PacedLoad(ConfluentLoad):
    """Sends a few hundred records per second in a few dozen requests, to leave CPU for the rest of
    the test: a request costs three processes far more than a record does.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: Sequence[int], **settings: Any
    ) -> None:
        super().__init__(bootstrap, topic, partitions, **{"linger.ms": 50, **settings})

    def _next_value(self, partition: int) -> bytes:
        time.sleep(0.004)  # a pause between records
        return super()._next_value(partition)


class AioLoad(Load):
    """An idempotent aiokafka producer in the test's event loop.

    It sends one record at a time per partition, which results in many requests. It fails if a
    partition has no leader for longer than `request_timeout_ms`.
    """

    async def _run(self) -> None:
        settings = {
            "enable_idempotence": True,
            "retry_backoff_ms": 20,
            "request_timeout_ms": 60_000,
            "metadata_max_age_ms": 1_000,
        }
        async with AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, **(settings | self._settings)
        ) as producer:
            await asyncio.gather(*(self._produce(producer, partition) for partition in self.sent))

    async def _produce(self, producer: Any, partition: int) -> None:
        while not self._stopping.is_set():
            number = self.sent[partition]
            response = await producer.send_and_wait(
                self._topic, self._next_value(partition), partition=partition
            )
            self.acks[partition].append((number, response.offset))
            await asyncio.sleep(0.002)  # a pause that leaves the event loop to other tasks


def number_of(value: bytes) -> int:
    number, _, padding = value.partition(b" ")
    assert padding == PADDING, f"other bytes than were sent: {value[:60]!r}"
    return int(number)


async def read_back(
    bootstrap: str, topic: str, partitions: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, number) of every record below the current high watermarks."""
    return await asyncio.to_thread(_read, bootstrap, topic, partitions)


def _read(
    bootstrap: str, topic: str, partitions: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "read-back",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 20,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    try:
        left = 0
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=PATIENCE_S
            )
            assert low == 0
            left += high
        consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
        )
        while left:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"nothing comes any more, {left} records are missing"
            if message.error() is not None:
                assert message.error().retriable() or message.error().code() < 0, message.error()
                continue
            found[message.partition()].append((message.offset(), number_of(message.value())))
            left -= 1
    finally:
        consumer.close()
    return found


def check(load: Load, log: dict[int, list[tuple[int, int]]], *, whole: bool = True) -> None:
    """Check that no acknowledged record is lost or duplicated, that records are in the order in
    which they were sent, and that offsets have no gaps.

    whole: every record was finally acknowledged, so the log contains exactly these records.
    """
    for partition, acks in load.acks.items():
        records = log[partition]
        jumps = [
            at
            for at, (offset, _) in enumerate(records)
            if offset != (records[at - 1][0] + 1 if at else 0)
        ]
        assert not jumps, (
            f"{partition}: offsets have gaps or repeat:"
            f" {[records[max(at - 2, 0) : at + 3] for at in jumps[:3]]}"
        )
        numbers = [number for _, number in records]
        breaks = [at for at in range(1, len(numbers)) if numbers[at] <= numbers[at - 1]]
        assert not breaks, (
            f"{partition}: twice or out of order:"
            f" {[records[max(at - 3, 0) : at + 3] for at in breaks[:3]]}"
        )
        at = dict(records)
        wrong = [
            (number, offset, at.get(offset))
            for number, offset in acks
            if offset >= 0 and at.get(offset) != number
        ]
        assert not wrong, f"{partition}: acknowledged (number, offset) but the log has: {wrong[:5]}"
        lost = {number for number, _ in acks} - set(numbers)
        assert not lost, f"{partition}: acknowledged and lost: {sorted(lost)[:5]}"
        if whole:
            assert len(acks) == load.sent[partition]
            assert numbers == list(range(load.sent[partition]))
