"""Kafka 4.2 and Penstock get the same batches of every kind, respond with the same error codes and
record errors, and store the same headers. `tests/support/record_cases.py` lists the differences
with their reasons.
"""

import asyncio
import time
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import (
    HEADER_BYTES,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    parse_header,
)
from penstock.protocol.gen import fetch, produce
from tests.interop.both import Both
from tests.support.record_cases import (
    ACCEPTED,
    ANY,
    BYTES,
    CASES,
    CODEC,
    FRAMINGS,
    LARGE,
    NONE,
    OUTCOMES,
    SOUND,
    build,
)
from tests.support.wire import wire_client

_BYTES_MAX = 10 << 20
MUTATIONS = (b"", bytes(4), b"\0\0\0\x80", b"\xff" * 4, b"\1\0\0\0")
"""Bytes that are inserted or replace others, such as empty block lengths of lz4."""
MUTATION_SEED, MUTATIONS_COUNT = 6, 1_500
_OTHER_TIMES = {"append time with deltas"}
"""Kafka takes the producer's max timestamp as the timestamp of each record."""


class Result(NamedTuple):
    """errors: the rejected records. stored: the batch in the log, or None if rejected."""

    code: int
    errors: tuple[int, ...]
    message: str | None
    stored: bytes | None


class Talk:
    """A connection that produces batches and fetches them as stored."""

    def __init__(self, address: str) -> None:
        self._client = wire_client(address)

    def close(self) -> None:
        self._client.close()

    def send(self, topic: str, batch: bytes, version: int = 12) -> Result:
        part = produce.PartitionProduceData(0, memoryview(batch))
        data = produce.TopicProduceData(name=topic, partition_data=[part])
        request = produce.ProduceRequest(acks=-1, timeout_ms=180_000, topic_data=[data])
        (found,) = (
            self._send_request(apis.PRODUCE, request, version).responses[0].partition_responses
        )
        errors = tuple(error.batch_index for error in found.record_errors)
        stored = None if found.error_code else self._stored(topic, found.base_offset)
        return Result(found.error_code, errors, found.error_message, stored)

    def _stored(self, topic: str, offset: int) -> bytes:
        requested = fetch.FetchPartition(0, fetch_offset=offset, partition_max_bytes=_BYTES_MAX)
        request = fetch.FetchRequest(
            max_wait_ms=30_000,
            min_bytes=1,
            topics=[fetch.FetchTopic(topic=topic, partitions=[requested])],
        )
        (found,) = self._send_request(apis.FETCH, request, 12).responses[0].partitions
        return bytes(found.records)

    def _send_request(self, api: ApiSpec, request: object, version: int) -> Any:
        return self._client.send_request(api, request, object, version=version)


async def _topics(both: Both) -> dict[tuple[tuple[str, str], ...], str]:
    """Create a topic for each set of configs."""
    topics: dict[tuple[tuple[str, str], ...], str] = {}
    for case in CASES:
        key = tuple(sorted(case.configs.items()))
        if key not in topics:
            topics[key] = f"validated-{len(topics)}"
            configs = {name.replace(".", "_"): value for name, value in key}
            await both.create(topics[key], **configs)
    return topics


def _derived(header: BatchHeader, *, has_times: bool) -> tuple[int, ...]:
    """Return the header fields that a broker may change. Log append times differ."""
    times = (header.base_timestamp_ms, header.max_timestamp_ms) if has_times else ()
    return (header.attributes, header.last_offset_delta, header.record_count, *times)


def _compare_stored(name: str, sent: bytes, kafka: Result, ours: Result) -> Iterator[str]:
    assert kafka.stored is not None
    assert ours.stored is not None
    expected, found = parse_header(kafka.stored), parse_header(ours.stored)
    has_times = not found.attributes & TIMESTAMP_TYPE_MASK and name not in _OTHER_TIMES
    wanted = _derived(expected, has_times=has_times)
    if _derived(found, has_times=has_times) != wanted:
        yield f"{name}: stored {found}, Kafka {expected}"
    end = found.size_bytes
    if (
        not ours.stored[HEADER_BYTES:end]
        == kafka.stored[HEADER_BYTES:end]
        == sent[HEADER_BYTES:end]
    ):
        yield f"{name}: the records are not those that were sent"


def _differences(addresses: tuple[str, str], topics: dict[Any, str]) -> Iterator[str]:
    kafka, ours = [Talk(address) for address in addresses]
    for case in CASES:
        topic = topics[tuple(sorted(case.configs.items()))]
        outcome = OUTCOMES.get(case.name, ACCEPTED)
        for codec in Compression:
            batch = case.batch(codec, time.time_ns() // 1_000_000)
            expected, found = kafka.send(topic, batch), ours.send(topic, batch)
            code, kafka_code = outcome.code, outcome.kafka
            if codec:
                code = code if outcome.packed is None else outcome.packed
                kafka_code = outcome.kafka_packed
            kafka_code = code if kafka_code is None else kafka_code
            name = f"{case.name}, {codec.name}"
            if found.code != code or kafka_code not in (expected.code, ANY):
                yield f"{name}: {found[:3]}, Kafka {expected[:3]}"
            elif found.code == expected.code:
                if found.errors != expected.errors:
                    yield f"{name}: names {found.errors}, Kafka {expected.errors}"
                if not found.code:
                    yield from _compare_stored(case.name, batch, expected, found)
            if found.code and not found.message:
                yield f"{name}: no message"
    topic = topics[()]
    for framing in FRAMINGS:
        batch = framing.batch(time.time_ns() // 1_000_000)
        expected, found = kafka.send(topic, batch), ours.send(topic, batch)
        outcome = OUTCOMES.get(framing.name, ACCEPTED)
        kafka_code = outcome.code if outcome.kafka is None else outcome.kafka
        if (found.code, expected.code) != (outcome.code, kafka_code):
            yield f"{framing.name}: {found[:3]}, Kafka {expected[:3]}"
    for held in BYTES:
        batch = held.of(SOUND.batch(Compression.NONE, time.time_ns() // 1_000_000))
        expected, found = kafka.send(topic, batch), ours.send(topic, batch)
        if not found.code == expected.code == held.code:
            yield f"{held.name}: {found[:3]}, Kafka {expected[:3]}"
        elif not found.code:
            yield from _compare_stored(held.name, batch, expected, found)
    for talk in (kafka, ours):
        talk.close()


async def test_batches_are_accepted_and_rejected_as_by_kafka(both: Both) -> None:
    topics = await _topics(both)
    differences = await asyncio.to_thread(lambda: list(_differences(both.addresses, topics)))
    assert not differences, "\n".join(differences)


def _mutated(rng: Random, data: bytes) -> bytes:
    """Return the bytes with one to three random changes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at, count = rng.randrange(len(changed) + 1), rng.randint(1, 8)
        changed[at : at + rng.choice((0, count))] = rng.choice(
            (rng.randbytes(rng.randint(0, 4)), changed[at : at + count], *MUTATIONS)
        )
    return bytes(changed)


async def test_no_mutated_batch_is_accepted_that_kafka_rejects(both: Both) -> None:
    await both.create("mutated")
    rng = Random(MUTATION_SEED)
    origins = [
        (framing.codec, framing.packed)
        for framing in FRAMINGS
        if len(framing.packed) < 999 and framing.name not in OUTCOMES
    ]
    origins += [
        (Compression.NONE, case.data)
        for case in CASES
        if case.count == 2 and case.name not in OUTCOMES
    ]
    now_ms = time.time_ns() // 1_000_000
    batches: list[bytes] = []
    for _ in range(MUTATIONS_COUNT):
        codec, packed = rng.choice(origins)
        batches.append(build(b"", 2, {}, codec, now_ms, packed=_mutated(rng, packed)))

    def codes(address: str) -> list[int]:
        talk = Talk(address)
        found = [talk.send("mutated", batch).code for batch in batches]
        talk.close()
        return found

    kafka, ours = [await asyncio.to_thread(codes, address) for address in both.addresses]
    accepted = [code == NONE for code in ours]
    assert 50 < sum(accepted) < MUTATIONS_COUNT / 2
    unread = [
        batch[HEADER_BYTES:].hex()
        for batch, is_ours, code in zip(batches, accepted, kafka, strict=True)
        if is_ours and code != NONE
    ]
    assert not unread


async def test_version_and_size_limits_equal_those_of_kafka(both: Both) -> None:
    await both.create("small", max_message_bytes=1_000)
    now_ms = time.time_ns() // 1_000_000
    (long,) = [case for case in CASES if case.name == "long record"]

    def codes(address: str) -> list[int]:
        talk = Talk(address)
        zstd = SOUND.batch(Compression.ZSTD, now_ms)
        found = [talk.send("small", zstd, version).code for version in (6, 7)]
        found += [talk.send("small", long.batch(Compression.NONE, now_ms)).code]
        talk.close()
        return found

    for address in both.addresses:
        assert await asyncio.to_thread(codes, address) == [CODEC, NONE, LARGE]


async def test_log_append_time_is_the_broker_clock(both: Both) -> None:
    await both.create("stamped", message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000

    def stored(address: str) -> bytes | None:
        talk = Talk(address)
        found = talk.send("stamped", SOUND.batch(Compression.NONE, before_ms - 10**9))
        talk.close()
        return found.stored

    for address in both.addresses:
        found = await asyncio.to_thread(stored, address)
        assert found is not None
        header = parse_header(found)
        assert header.attributes & TIMESTAMP_TYPE_MASK
        assert before_ms <= header.max_timestamp_ms <= time.time_ns() // 1_000_000
