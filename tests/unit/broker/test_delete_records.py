"""DeleteRecords: which log starts it sets, and which requests it rejects."""

import pytest

from penstock.broker.handlers.topics.delete_records import handle_delete_records
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import delete_records as wire
from tests.support.partition_harness import batch, idempotent, transactional
from tests.support.waiting import PATIENCE_S


async def requested(broker, topics, version=2, timeout_ms=PATIENCE_S * 1_000):
    """Send a request; return {topic: {partition: (error, low watermark)}}.

    `topics` are pairs of a name and pairs of partition and offset. Each partition must occur in the
    response once.
    """
    wanted = [
        wire.DeleteRecordsTopic(name, [wire.DeleteRecordsPartition(*item) for item in items])
        for name, items in topics
    ]
    context = broker.context(
        apis.DELETE_RECORDS, version, wire.DeleteRecordsRequest(wanted, timeout_ms)
    )
    response = await handle_delete_records(broker, context)
    reply = broker.decode_response(apis.DELETE_RECORDS, version, response)
    found = {
        topic.name: {
            item.partition_index: (item.error_code, item.low_watermark) for item in topic.partitions
        }
        for topic in reply.topics
    }
    assert len(found) == len(reply.topics)
    assert [len(found[topic.name]) for topic in reply.topics] == [
        len(topic.partitions) for topic in reply.topics
    ]
    return found


async def delete(broker, topic, offset, index=0, version=2, timeout_ms=PATIENCE_S * 1_000):
    found = await requested(broker, [(topic, [(index, offset)])], version, timeout_ms)
    return found[topic][index]


@pytest.fixture
async def one(harness):
    broker = await harness.broker(1)
    harness.topic("t")
    await broker.opened("t")
    await broker.produce("t", idempotent(0, b"a", b"b", b"c", pid=7))
    return broker


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_records_before_an_offset_are_deleted(one, version):
    assert await delete(one, "t", 2, version=version) == (0, 2)
    assert (await one.fetch("t", 1)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [record.offset for record in (await one.fetch("t", 2)).records][-1] == 2


async def test_the_log_start_never_decreases(one):
    assert await delete(one, "t", 2) == (0, 2)
    assert await delete(one, "t", 1) == (0, 2)
    assert await delete(one, "t", 0) == (0, 2)


async def test_minus_one_deletes_up_to_the_high_watermark(one):
    assert await delete(one, "t", -1) == (0, 3)
    assert (await one.produce("t", batch(b"d"))).base_offset == 3


@pytest.mark.parametrize("offset", [4, -2])
async def test_offsets_outside_of_the_log_are_rejected(one, offset):
    assert await delete(one, "t", offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_each_partition_has_its_own_error(one, harness):
    harness.topic("c", **{"cleanup.policy": "compact"})
    await one.opened("c")
    assert await delete(one, "c", 0) == (ErrorCode.POLICY_VIOLATION, -1)
    assert await delete(one, "u", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete(one, "t", 0, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    one.is_unsure = True
    assert await delete(one, "t", 1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_a_lost_response_of_the_controller_loses_no_log_start(one, harness, monkeypatch):
    async def lost(request, *, timeout_s=0):
        harness.run(real(harness.image, request, harness.now_ms))
        raise TimeoutError("no response")

    from penstock.controller.managers.streams import trim_stream as real

    async def silent(request, *, timeout_s=0):
        raise TimeoutError("no response")

    monkeypatch.setattr(harness, "trim_stream", silent)
    assert await delete(one, "t", 1) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    monkeypatch.setattr(harness, "trim_stream", lost)
    assert await delete(one, "t", 2) == (0, 2), "the metadata show it"
    found = await one.fetch("t", 1)
    assert (found.error, found.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert (await one.fetch("t", 2)).log_start == 2


async def test_producer_state_is_kept_after_all_records_are_deleted(one, harness):
    assert await delete(one, "t", -1) == (0, 3)
    await one.crash()
    other = await harness.broker(2)
    await harness.fail_over(one, other)
    await harness.hand_over("t", other)
    repeated = await other.produce("t", idempotent(0, b"a", b"b", b"c", pid=7))
    assert (repeated.error_code, repeated.base_offset) == (0, 0)
    assert (await other.produce("t", idempotent(3, b"d", pid=7))).base_offset == 3


async def test_records_of_an_open_transaction_can_be_deleted(one):
    await one.produce("t", transactional(8, 0, b"x", b"y"))
    assert await delete(one, "t", -1) == (0, 5)
    assert (await one.opened("t")).last_stable_offset == 5
    await one.produce("t", transactional(8, 2, b"z"))
    assert await one.mark("t", 8, commit=False) == 0
    await one.produce("t", batch(b"e"))
    assert await one.committed("t", 5) == [b"e"]


async def test_a_request_for_many_partitions_flushes_once(one, harness, monkeypatch):
    harness.topic("m", 3)
    for index in range(3):
        await one.opened("m", index)
        await one.produce("m", batch(b"a", b"b"), index=index)
    flushes = []
    real = one.storage.flush

    async def counted():
        flushes.append(None)
        await real()

    monkeypatch.setattr(one.storage, "flush", counted)
    response = await requested(one, [("m", [(index, index) for index in range(4)])])
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert response == {"m": {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: unknown}}
    assert len(flushes) == 1


# --- responses of Kafka 4.2 to the same requests, versions 0 to 2 ---------------------------------

BEYOND = (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
COMPACTED = (ErrorCode.POLICY_VIOLATION, -1)
INTERNAL = (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
KAFKA_RESPONSES = [
    ([("t", [(0, 0)])], {"t": {0: (0, 3)}}),
    ([("t", [(0, 2)])], {"t": {0: (0, 3)}}),
    ([("t", [(0, 3)])], {"t": {0: (0, 3)}}),
    ([("t", [(0, 4)])], {"t": {0: (0, 4)}}),
    ([("t", [(0, 10)])], {"t": {0: (0, 10)}}),
    ([("t", [(0, -1)])], {"t": {0: (0, 10)}}),
    ([("t", [(0, 11)])], {"t": {0: BEYOND}}),
    ([("t", [(0, -2)])], {"t": {0: BEYOND}}),
    ([("t", [(0, -(2**63))])], {"t": {0: BEYOND}}),
    ([("t", [(0, 2**63 - 1)])], {"t": {0: BEYOND}}),
    ([("none", [(0, 0)])], {"none": {0: UNKNOWN}}),
    ([("a b/c", [(0, 0)])], {"a b/c": {0: UNKNOWN}}),
    ([("", [(0, 0)])], {"": {0: UNKNOWN}}),
    ([("t", [(7, 0), (-1, 0)])], {"t": {7: UNKNOWN, -1: UNKNOWN}}),
    # An empty partition.
    ([("t", [(1, -1)])], {"t": {1: (0, 0)}}),
    ([("t", [(1, 0)])], {"t": {1: (0, 0)}}),
    ([("t", [(1, 1)])], {"t": {1: BEYOND}}),
    # The policy is checked before the offset.
    ([("c", [(0, 1)])], {"c": {0: COMPACTED}}),
    ([("c", [(0, 0)])], {"c": {0: COMPACTED}}),
    ([("c", [(0, -2)])], {"c": {0: COMPACTED}}),
    ([("c", [(0, 99)])], {"c": {0: COMPACTED}}),
    ([("c", [(9, 0)])], {"c": {9: UNKNOWN}}),
    ([("cd", [(0, 2)])], {"cd": {0: (0, 2)}}),
    ([("dc", [(0, 2)])], {"dc": {0: (0, 2)}}),
    ([("kept", [(0, 2)])], {"kept": {0: (0, 2)}}),
    (
        [("__consumer_offsets", [(0, 0), (1, -1), (99, 0)])],
        {"__consumer_offsets": {0: INTERNAL, 1: INTERNAL, 99: UNKNOWN}},
    ),
    (
        [("__transaction_state", [(0, 0), (99, 0)])],
        {"__transaction_state": {0: INTERNAL, 99: UNKNOWN}},
    ),
    ([("__cluster_metadata", [(0, 0)])], {"__cluster_metadata": {0: UNKNOWN}}),
    # If a partition occurs twice, the last offset applies.
    ([("t", [(0, 4), (0, 4)])], {"t": {0: (0, 4)}}),
    ([("t", [(0, 6), (0, 5)])], {"t": {0: (0, 5)}}),
    ([("t", [(0, 5), (0, 6)])], {"t": {0: (0, 6)}}),
    ([("t", [(0, 6), (0, 99)])], {"t": {0: BEYOND}}),
    ([("t", [(0, 99), (0, 6)])], {"t": {0: (0, 6)}}),
    ([("t", [(0, 6)]), ("t", [(1, 0)])], {"t": {0: (0, 6), 1: (0, 0)}}),
    ([("t", [(0, 6)]), ("t", [(0, 7)])], {"t": {0: (0, 7)}}),
    (
        [("none", [(1, 0)]), ("cd", [(1, 0), (0, 3)]), ("none", [(0, 0)])],
        {"none": {1: UNKNOWN, 0: UNKNOWN}, "cd": {1: (0, 0), 0: (0, 3)}},
    ),
    (
        [("t", [(0, 4), (1, 5), (9, 0)]), ("c", [(0, 1)]), ("__consumer_offsets", [(0, 0)])],
        {"t": {0: (0, 4), 1: BEYOND, 9: UNKNOWN}, "c": {0: COMPACTED}}
        | {"__consumer_offsets": {0: INTERNAL}},
    ),
    ([("t", [])], {}),
    ([], {}),
]


@pytest.fixture
async def asked_kafka(harness):
    """Return ten records in partition 0 of each topic, which has two partitions; the log of `t`
    starts at 3.
    """
    broker = await harness.broker(1)
    policies = {"t": "delete", "c": "compact", "cd": "compact,delete", "dc": "delete,compact"}
    for name, policy in {**policies, "kept": ""}.items():
        harness.topic(name, 2, **{"cleanup.policy": policy})
        await broker.opened(name, 1)
        await broker.opened(name)
        await broker.produce(name, batch(*[b"v"] * 10))
    for name in ("__consumer_offsets", "__transaction_state"):
        harness.topic(name, 4)
    assert await delete(broker, "t", 3) == (0, 3)
    return broker


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("topics", "expected"), KAFKA_RESPONSES)
async def test_responses_match_kafka(asked_kafka, topics, expected, version):
    assert await requested(asked_kafka, topics, version) == expected


async def test_nonexistent_internal_topics_are_unknown(one):
    assert await delete(one, "__consumer_offsets", 0) == UNKNOWN


@pytest.mark.parametrize("timeout_ms", [0, -1, 1, -(2**31)])
async def test_the_leader_deletes_records_however_short_the_timeout_is(one, timeout_ms):
    """Kafka's leader moves its log start before it checks the timeout."""
    assert await delete(one, "t", 2, timeout_ms=timeout_ms) == (0, 2)
