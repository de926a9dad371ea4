"""Exchanges with logs: idempotent producers, fetch sessions, offsets, topics and transactions."""

import asyncio
from random import Random
from typing import Any, Final

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.protocol import apis
from penstock.protocol.batch.records import decode_records
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    list_offsets,
    offset_for_leader_epoch,
)
from penstock.protocol.gen import fetch as wire_fetch
from tests.sim.checkers import Part
from tests.sim.committed import returned_batches
from tests.sim.directed import Script
from tests.sim.directed_clients import Group, Producer
from tests.sim.nodes import FETCH_VERSION
from tests.sim.overtaken import LATE_S, Exchange
from tests.sim.places import PREFIX

LOG: Final = "log"
"""The topic of these exchanges, with a partition for each."""
PRODUCED: Final[Part] = (LOG, 0)
FETCHED: Final[Part] = (LOG, 1)
TRIMMED: Final[Part] = (LOG, 2)
TRANSACTED: Final = ((LOG, 3), (LOG, 4))
_FIRST_PRODUCER_ID: Final = 10_000
_BATCHES: Final = 8
"""More than the five batches that a partition remembers of a producer."""
_TIMEOUT_S: Final = 10.0
_EARLIEST, _LATEST = -2, -1


async def create_logs(script: Script) -> None:
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    await script.create(OFFSETS_TOPIC, (2,), cleanup_policy="compact")
    await script.create(LOG, (1, 2, 1, 1, 2))


async def produce(script: Script, rng: Random, number: int) -> None:
    """Write batches of an idempotent producer. Each is stored once, and in order."""
    sent = list[bytes]()
    for sequence in range(_BATCHES):
        value = b"%d/%d" % (number, sequence)
        at = await _write(script, PRODUCED, number, sequence, value)
        sent.append(value)
        assert await offset_of(script, PRODUCED, _LATEST) == at + 1
        assert await _end_of_epoch(script, PRODUCED) == at + 1
        await asyncio.sleep(rng.choice((0.0, 0.1)))
    prefix = b"%d/" % number
    found = [item.value for item in await script.read(PRODUCED) if _begins(item.value, prefix)]
    assert found == sent, f"{sent} are written, the log has {found}"


async def _write(script: Script, part: Part, number: int, sequence: int, value: bytes) -> int:
    """Append a batch of an idempotent producer."""
    producer_id = _FIRST_PRODUCER_ID + number
    return await script.write(part, (b"k", value), producer_id=producer_id, sequence=sequence)


def _begins(value: bytes | None, prefix: bytes) -> bool:
    return value is not None and value.startswith(prefix)


async def offset_of(script: Script, part: Part, timestamp: int) -> int:
    requested = list_offsets.ListOffsetsPartition(part[1], timestamp=timestamp)
    request = list_offsets.ListOffsetsRequest(
        -1, topics=[list_offsets.ListOffsetsTopic(part[0], [requested])]
    )
    found = await script.repeat(
        lambda: script.leader(part),
        (apis.LIST_OFFSETS, 7, request),
        lambda response: response.topics[0].partitions[0],
    )
    return int(found.offset)


async def _end_of_epoch(script: Script, part: Part) -> int:
    epoch = script.topic(part[0]).partitions[part[1]].leader_epoch
    requested = offset_for_leader_epoch.OffsetForLeaderPartition(part[1], -1, epoch)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(part[0], [requested])
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, [topic])
    found = await script.repeat(
        lambda: script.leader(part),
        (apis.OFFSET_FOR_LEADER_EPOCH, 4, request),
        lambda response: response.topics[0].partitions[0],
    )
    return int(found.end_offset)


class FetchingClient:
    """A consumer with a fetch session. It sends a partition when its position has changed."""

    def __init__(self, script: Script, part: Part, position: int) -> None:
        leader = script.leader(part)
        assert leader is not None
        self._connection: Any = script.world.connect(leader)
        self._part = part
        self._position = self._named = position
        self._session_id = self._epoch = 0

    def request(self) -> tuple[Any, int, Any]:
        is_named = not self._epoch or self._position != self._named
        requested = wire_fetch.FetchPartition(
            self._part[1], fetch_offset=self._position, partition_max_bytes=1 << 20
        )
        topic = wire_fetch.FetchTopic(topic=self._part[0], partitions=[requested])
        request = wire_fetch.FetchRequest(
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[topic] if is_named else [],
        )
        return apis.FETCH, FETCH_VERSION, request

    def ending(self) -> tuple[Any, int, Any]:
        """Return the request that ends the session."""
        request = wire_fetch.FetchRequest(session_id=self._session_id, session_epoch=-1)
        return apis.FETCH, FETCH_VERSION, request

    async def poll(self, delay_s: float | None = None) -> list[bytes | None]:
        """Fetch once. delay_s: the delay of a late first copy."""
        request = self.request()
        left = None if delay_s is None else self._connection.leave_behind(request, delay_s)
        response = await self._connection.send_request(*request, _TIMEOUT_S)
        if left is not None:
            left.is_overtaken = True
        code = ErrorCode(response.error_code)
        assert code is ErrorCode.NONE, f"a fetch session gets {code.name}"
        self._session_id, self._epoch = response.session_id, self._epoch + 1
        self._named, values = self._position, list[bytes | None]()
        for topic in response.responses:
            for found in topic.partitions:
                for data, header, _ in returned_batches(found):
                    offsets = [record.offset for record in decode_records(data)]
                    assert offsets[0] == self._position, (
                        f"a session at offset {self._position} gets {offsets}"
                    )
                    values += [record.value for record in decode_records(data)]
                    self._position = header.next_offset
        return values


async def fetch(script: Script, rng: Random, number: int) -> None:
    """Read in a fetch session while records are written: it gets each of them once."""
    position = await offset_of(script, FETCHED, _LATEST)
    client, sent, read = FetchingClient(script, FETCHED, position), list[bytes](), list[Any]()
    await client.poll()
    for serial in range(6):
        sent.append(b"%d/%d" % (number, serial))
        await _write(script, FETCHED, number, serial, sent[-1])
        for _ in range(3):
            read += await client.poll(rng.choice((None, 0.01, 0.1)))
            await asyncio.sleep(rng.choice((0.0, 0.05)))
    assert read == sent, f"{sent} are written, a fetch session gets {read}"


async def trim(script: Script, rng: Random, number: int) -> None:
    """Delete records. The log start never decreases."""
    for serial in range(5):
        await _write(script, TRIMMED, number, 2 * serial, b"v")
        end = await _write(script, TRIMMED, number, 2 * serial + 1, b"v")
        requested = delete_records.DeleteRecordsPartition(TRIMMED[1], end)
        request = delete_records.DeleteRecordsRequest(
            [delete_records.DeleteRecordsTopic(LOG, [requested])], timeout_ms=5_000
        )
        found = await script.repeat(
            lambda: script.leader(TRIMMED),
            (apis.DELETE_RECORDS, 2, request),
            lambda response: response.topics[0].partitions[0],
        )
        assert found.low_watermark == end
        await asyncio.sleep(rng.choice((0.0, 0.3)))
        start = await offset_of(script, TRIMMED, _EARLIEST)
        assert start == end, f"the log start goes from {end} back to {start}"


async def administer_topics(script: Script, rng: Random, number: int) -> None:
    """Create a topic, add partitions, delete it by its id, and create it again. A late copy of the
    creation may recreate the topic, as in Kafka; no copy changes the next topic.
    """
    for serial in range(2):
        name = f"{PREFIX}{number}.{serial}"
        topic_id = await _create(script, name)
        for total in (2, 3):
            await _grow(script, name, total)
            count = len(script.topic(name).partitions)
            assert count == total, f"the topic has {count} partitions instead of {total}"
        state = delete_topics.DeleteTopicState(None, topic_id)
        request = delete_topics.DeleteTopicsRequest(topics=[state], timeout_ms=10_000)
        await script.repeat(
            lambda: script.broker(1),
            (apis.DELETE_TOPICS, 6, request),
            lambda response: response.responses[0],
        )
        topic_id = await _create(script, name)
        await asyncio.sleep(rng.uniform(0.5, 1.0) * LATE_S)
        assert script.topic(name).topic_id == topic_id, "a late deletion deletes the next topic"


async def _create(script: Script, name: str) -> Any:
    topic = create_topics.CreatableTopic(name, -1, -1, [], [])
    request = create_topics.CreateTopicsRequest([topic], 10_000, validate_only=False)
    await script.repeat(
        lambda: script.broker(2),
        (apis.CREATE_TOPICS, 7, request),
        lambda response: response.topics[0],
        done=(ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS),
    )
    return script.topic(name).topic_id


async def _grow(script: Script, name: str, total: int) -> None:
    topic = create_partitions.CreatePartitionsTopic(name, total, None)
    request = create_partitions.CreatePartitionsRequest([topic], 10_000, validate_only=False)
    await script.repeat(
        lambda: script.broker(1),
        (apis.CREATE_PARTITIONS, 3, request),
        lambda response: response.results[0],
    )


async def transact(script: Script, rng: Random, number: int) -> None:
    """Commit and abort transactions of both versions, with offsets. Readers get the committed
    records.
    """
    version = 1 + (number % 3 == 2)
    producer = Producer(script, f"p{number}", version)
    group = Group(script, f"pg{number}")
    committed, offset = list[bytes](), -1
    await producer.begin()
    for serial in range(6):
        values = [b"%d/%d/%d" % (number, serial, at) for at in range(2)]
        for part, value in zip(TRANSACTED, values, strict=True):
            await producer.write(part, (b"k", value))
        has_offset = serial % 3 != 2
        if has_offset:
            await producer.stage(group, PRODUCED, serial)
        await asyncio.sleep(rng.choice((0.0, 0.2)))
        commit = rng.random() < 0.5
        await producer.end(commit=commit)
        if commit:
            committed += values
            offset = serial if has_offset else offset
        found = await group.committed(PRODUCED)
        assert found == offset, f"the group has the offset {found} instead of {offset}"
        if serial % 2:
            await producer.renew()
    await asyncio.sleep(LATE_S)
    prefix, read = b"%d/" % number, list[bytes]()
    for part in TRANSACTED:
        records = await script.read(part, committed=True)
        read += [item.value or b"" for item in records if _begins(item.value, prefix)]
    assert sorted(read) == sorted(committed), f"{committed} are committed, readers get {read}"


LOG_EXCHANGES: Final = (
    Exchange(produce, (apis.PRODUCE, apis.LIST_OFFSETS, apis.OFFSET_FOR_LEADER_EPOCH)),
    Exchange(fetch, (apis.FETCH,)),
    Exchange(trim, (apis.DELETE_RECORDS,)),
    Exchange(administer_topics, (apis.CREATE_TOPICS, apis.CREATE_PARTITIONS, apis.DELETE_TOPICS)),
    Exchange(
        transact,
        (
            apis.INIT_PRODUCER_ID,
            apis.FIND_COORDINATOR,
            apis.ADD_PARTITIONS_TO_TXN,
            apis.ADD_OFFSETS_TO_TXN,
            apis.TXN_OFFSET_COMMIT,
            apis.END_TXN,
            apis.WRITE_TXN_MARKERS,
            apis.OFFSET_FETCH,
        ),
    ),
)
