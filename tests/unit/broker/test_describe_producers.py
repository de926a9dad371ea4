"""DescribeProducers, and transaction markers written by an administrator. The expected responses
are those of Kafka 4.2; tests/interop compares both.
"""

import pytest

from penstock.broker.handlers import describe_producers as handler
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import describe_producers as wire
from tests.support.partition_harness import NOW, batch, transactional

LATER = NOW + 5_000


@pytest.fixture
async def pair(harness):
    brokers = [await harness.broker(1)]
    harness.topic("t", 2)
    for index in (0, 1):
        await brokers[0].opened("t", index)
    brokers.append(await harness.broker(2))
    return brokers


@pytest.fixture
async def one(pair):
    return pair[0]


async def send_request(broker, *topics):
    request = wire.DescribeProducersRequest([wire.TopicRequest(*topic) for topic in topics])
    context = broker.context(apis.DESCRIBE_PRODUCERS, 0, request)
    response = broker.decode_response(
        apis.DESCRIBE_PRODUCERS, 0, await handler.handle_describe_producers(broker, context)
    )
    return [
        (topic.name, part.partition_index, part)
        for topic in response.topics
        for part in topic.partitions
    ]


def idempotent(pid, **options):
    return batch(b"x", producer_id=pid, producer_epoch=0, base_sequence=0, **options)


async def producers(broker, topic="t", index=0):
    """Return (id, epoch, last sequence, last timestamp, coordinator epoch, first offset) of each
    producer.
    """
    ((_, _, part),) = await send_request(broker, (topic, [index]))
    assert (part.error_code, part.error_message) == (0, None)
    return [
        (
            found.producer_id,
            found.producer_epoch,
            found.last_sequence,
            found.last_timestamp,
            found.coordinator_epoch,
            found.current_txn_start_offset,
        )
        for found in part.active_producers
    ]


async def test_producer_state_during_a_transaction(harness, one):
    assert await producers(one) == []
    await one.produce("t", transactional(7, 0, b"a", b"b"))
    await one.produce("t", idempotent(8, timestamp=NOW - 9))
    assert await producers(one) == [(7, 0, 1, NOW, -1, 0), (8, 0, 0, NOW - 9, -1, -1)]
    harness.now_ms = LATER
    assert await one.mark("t", 7, commit=True, coordinator_epoch=3) == ErrorCode.NONE
    assert (await producers(one))[1] == (7, 0, 1, LATER, 3, -1)
    await one.produce("t", transactional(7, 2, b"d"))
    assert (await producers(one))[1] == (7, 0, 2, NOW, 3, 4)
    assert await one.mark("t", 7, 1, commit=False, coordinator_epoch=3) == ErrorCode.NONE
    assert (await producers(one))[1] == (7, 1, -1, LATER, 3, -1)


async def test_the_next_leader_returns_the_same_producers(harness, pair):
    one, other = pair
    await one.produce("t", transactional(7, 0, b"a"))
    await one.produce("t", idempotent(8))
    await one.mark("t", 9, commit=True, coordinator_epoch=2)
    before = await producers(one)
    harness.now_ms = LATER
    await harness.hand_over("t", other)
    assert await producers(other) == before
    ((_, _, part),) = await send_request(one, ("t", [0]))
    assert (part.error_code, part.active_producers) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


async def test_the_timestamp_is_the_append_time_if_the_topic_uses_it(harness, one):
    harness.topic("clocked")
    harness.configure("clocked", "message.timestamp.type", "LogAppendTime")
    await harness.hand_over("clocked", one)
    harness.now_ms = LATER
    await one.produce("clocked", transactional(7, 0, b"a"))
    assert await producers(one, "clocked") == [(7, 0, 0, LATER, -1, 0)]


async def test_each_partition_has_its_own_error(one):
    responses = await send_request(
        one, ("t", [0, 7, -1, 0]), ("none", [0]), ("a b", [0]), ("", [0])
    )
    unknown, invalid = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [(name, index, part.error_code) for name, index, part in responses] == [
        ("t", 0, 0),
        ("t", 7, unknown),
        ("t", -1, unknown),
        ("t", 0, 0),
        ("none", 0, unknown),
        ("a b", 0, invalid),
        ("", 0, invalid),
    ]
    assert [part.error_message for _, _, part in responses if not part.error_code] == [None, None]
    assert await send_request(one) == []


async def test_a_broker_without_a_session_returns_not_leader(one):
    one.writable = False
    ((_, _, part),) = await send_request(one, ("t", [0]))
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_clients_fetch_again_when_a_response_is_full(one, monkeypatch):
    monkeypatch.setattr(handler, "PRODUCERS_MAX", 2)
    for index in (0, 1):
        for pid in range(3 - index):
            await one.produce("t", idempotent(pid), index)
    responses = await send_request(one, ("t", [0, 1]))
    assert [len(part.active_producers) for _, _, part in responses] == [3, 0], "one at least"
    assert responses[1][2].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len((await send_request(one, ("t", [1])))[0][2].active_producers) == 2


# --- administrator markers ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_an_administrator_aborts_a_transaction(one, version):
    await one.produce("t", transactional(7, 0, b"hanging"))
    await one.produce("t", batch(b"behind"))
    assert await one.committed("t") == []
    assert await one.mark("t", 7, commit=False, version=version) == ErrorCode.NONE
    assert await one.committed("t") == [b"behind"]
    assert (await producers(one))[-1][-2:] == (0, -1)


async def test_a_marker_of_an_older_producer_or_coordinator_epoch_is_rejected(one):
    await one.produce("t", transactional(7, 0, b"a", epoch=2))
    await one.mark("t", 7, 2, commit=True, coordinator_epoch=5)
    await one.produce("t", transactional(7, 1, b"b", epoch=2))
    before = await producers(one)
    for epoch, coordinator_epoch, code in (
        (1, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 4, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (-1, 5, ErrorCode.INVALID_REQUEST),
    ):
        found = await one.mark("t", 7, epoch, commit=False, coordinator_epoch=coordinator_epoch)
        assert found == code
    assert await one.mark("t", -1, commit=False) == ErrorCode.INVALID_REQUEST
    assert await producers(one) == before


async def test_a_version_2_transaction_ends_with_the_next_epoch(one):
    await one.produce("t", transactional(7, 0, b"a"))
    settings = {"commit": False, "version": 2, "transaction_version": 2}
    assert await one.mark("t", 7, 0, **settings) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await producers(one))[0][-1] == 0
    assert await one.mark("t", 7, 1, **settings) == ErrorCode.NONE
    assert await one.mark("t", 7, 1, **settings) == ErrorCode.NONE, "a repetition"
    assert await producers(one) == [(7, 1, -1, NOW, 0, -1)]


async def test_the_coordinator_marker_is_accepted_after_one_of_an_administrator(one):
    """The coordinator's marker has a serial, and so does the late copy of its predecessor, which
    must have no effect.
    """
    await one.produce("t", transactional(7, 0, b"first"))
    await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=10)
    await one.produce("t", transactional(7, 1, b"second"))
    assert await one.mark("t", 7, commit=False, coordinator_epoch=3) == ErrorCode.NONE
    assert await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=12) == ErrorCode.NONE
    await one.produce("t", transactional(7, 2, b"third"))
    await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=12)
    assert (await producers(one))[0][-1] >= 0, "the late copy does not end the third"
    await one.mark("t", 7, commit=True, coordinator_epoch=3, serial=14)
    assert await one.committed("t") == [b"first", b"third"]
