"""A topic in a store, and the expected contents of its table. The cluster that wrote it is stopped,
because exports need only the store.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.objectstore.directory import DirectoryStore
from penstock.stream.config import StreamConfig
from tests.support.cluster import Cluster
from tests.support.store_reader import Follower
from tests.support.waiting import PATIENCE_S

DAY_MS = 86_400_000
BEGIN_MS = 1_767_225_600_000
"""2026-01-01."""

SCHEMA = json.dumps(
    {
        "type": "object",
        "required": ["n"],
        "properties": {
            "n": {"type": "integer"},
            "name": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "at": {"type": "object", "properties": {"x": {"type": "number"}}},
        },
    }
).encode()


@dataclass(frozen=True)
class Sent:
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def row(self) -> dict[str, Any] | None:
        """Return the value parsed as JSON, or None if it is not JSON or lacks required fields."""
        try:
            found = json.loads(self.value or b"")
        except ValueError:
            return None
        return found if isinstance(found, dict) and isinstance(found.get("n"), int) else None


@dataclass(frozen=True)
class Log:
    store_url: str
    topic: str
    sent: list[Sent]

    def of_key(self) -> dict[tuple[int, bytes], Sent]:
        """Return the rows that remain after upserts."""
        last: dict[tuple[int, bytes], Sent] = {}
        for record in sorted(self.sent, key=lambda record: record.offset):
            if record.key is not None and (record.value is None or record.row is not None):
                last[record.partition, record.key] = record
        return {key: record for key, record in last.items() if record.value is not None}


def value_of(number: int) -> bytes | None:
    """Return a random value: mostly rows, some invalid values, some tombstones."""
    if number % 17 == 5:
        return b"{broken"
    if number % 17 == 9:
        return json.dumps({"n": "a text"}).encode()
    if number % 17 == 13:
        return None
    row: dict[str, Any] = {"n": number, "tags": ["a", "b"][: number % 3], "at": {"x": number / 2}}
    return json.dumps(
        row | ({"name": f"name {number}", "unknown": 1} if number % 2 else {"name": None})
    ).encode()


async def write_log(
    directory: Path, *, records: int = 300, partitions: int = 3, rounds: int = 3
) -> Log:
    """Write records to each partition, over three days. Some records have no key, and
    keys repeat.
    """
    sent: list[Sent] = []

    def produce(bootstrap: str) -> None:
        for part in range(rounds):
            numbers = range(part * records // rounds, (part + 1) * records // rounds)
            _produce(bootstrap, numbers, partitions, sent)

    url = await _write_topic(directory, produce, dict.fromkeys(range(partitions), records))
    return Log(url, "t", sent)


async def write_messages(
    directory: Path,
    messages: Sequence[tuple[bytes | None, bytes | None]],
    headers: Sequence[list[tuple[str, bytes]]] = (),
) -> Log:
    """Write keys and values to a topic with one partition."""

    def produce(bootstrap: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        for (key, value), given in zip_longest(messages, headers):
            producer.produce("t", value, key, headers=given)
        assert producer.flush(PATIENCE_S) == 0

    return Log(await _write_topic(directory, produce, {0: len(messages)}), "t", [])


async def _write_topic(
    directory: Path, produce: Callable[[str], None], counts: dict[int, int]
) -> str:
    """Write the records of each partition. Return the URL of the store."""
    store_directory = directory / "store"
    async with Cluster(
        directory,
        store=DirectoryStore(str(store_directory)),
        stream_config=StreamConfig(wal_linger_ms=0),
    ) as cluster:
        await cluster.broker.client.create_topics(
            CreateTopics(topics=[NewTopic(name="t", partitions=len(counts))])
        )
        for partition in counts:
            await cluster.until_served("t", partition)
        await asyncio.to_thread(produce, cluster.bootstrap)
        follower = Follower(cluster.store, "t", counts)
        async with asyncio.timeout(PATIENCE_S):
            while await follower.look() != counts:  # noqa: ASYNC110 - of no one event
                await asyncio.sleep(0.05)  # sets the pace: the store does not announce changes
    return f"file:{store_directory}"


def _produce(bootstrap: str, numbers: range, partitions: int, sent: list[Sent]) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in numbers:
        for partition in range(partitions):
            key = None if number % 29 == 7 else f"k{number % 40}".encode()
            value, timestamp_ms = value_of(number), BEGIN_MS + number % 3 * DAY_MS + number

            def acknowledged(
                error: Any,
                message: Any,
                partition: int = partition,
                key: Any = key,
                value: Any = value,
                at: int = timestamp_ms,
            ) -> None:
                failed.extend([error] if error else [])
                sent.append(Sent(partition, message.offset(), at, key, value))

            headers = [("trace", f"{number}".encode())] if number % 2 else None
            producer.produce(
                "t",
                value,
                key,
                partition=partition,
                timestamp=timestamp_ms,
                headers=headers,
                on_delivery=acknowledged,
            )
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []
