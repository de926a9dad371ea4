"""Fetch sessions (KIP-227): response contents, and which requests have no session."""

import asyncio
from random import Random
from uuid import UUID

import pytest

from penstock.base.ids import Offset
from penstock.broker.errors import ErrorCode
from penstock.broker.requests import fetch_sessions
from penstock.broker.requests.fetch_sessions import EVICTION_S, FetchSessions
from penstock.protocol.fetch import FetchPartitionResult
from penstock.protocol.gen.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.support.partition_harness import batch

PARTITIONS = 3


@pytest.fixture
async def broker(harness):
    broker = await harness.broker(1)
    harness.topic("t", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        await harness.hand_over("t", broker, index)
    return broker


def held(response):
    """Return the partitions in a response, in order."""
    return [part.partition_index for topic in response.responses for part in topic.partitions]


async def begin(broker, offset=0):
    requested = [("t", index, offset) for index in range(PARTITIONS)]
    response = await broker.fetch_all(requested, session=(0, 0))
    assert (response.error_code, held(response)) == (0, [0, 1, 2])
    assert response.session_id > 0
    return response.session_id


async def test_a_response_contains_only_changed_partitions(broker):
    session = await begin(broker)
    response = await broker.fetch_all([], session=(session, 1))
    assert (response.session_id, held(response)) == (session, [])
    await broker.produce("t", batch(b"a"), index=1)
    response = await broker.fetch_all([], session=(session, 2))
    assert held(response) == [1]
    response = await broker.fetch_all([("t", 1, 1)], session=(session, 3))
    assert held(response) == []


async def test_a_wait_without_a_timeout_checks_the_partitions_once(broker, monkeypatch):
    session, looked = await begin(broker), []
    get = broker.partitions.get
    monkeypatch.setattr(broker.partitions, "get", lambda *of: looked.append(of) or get(*of))
    response = await broker.fetch_all([], session=(session, 1), max_wait_ms=10)
    assert held(response) == []
    assert sorted(looked) == [("t", index) for index in range(PARTITIONS)]


async def test_partitions_that_returned_records_come_last_in_the_next_response(broker):
    session = await begin(broker)
    for index in range(PARTITIONS):
        await broker.produce("t", batch(b"a"), index=index)
    small = {"max_bytes": 1}
    orders = [
        held(await broker.fetch_all([], session=(session, epoch), **small)) for epoch in (1, 2, 3)
    ]
    assert [order[0] for order in orders] == [0, 1, 2]


async def test_errors_are_repeated_and_the_recovery_is_reported(broker):
    session = await begin(broker)
    broker.harness.lead("t", None, 2)
    for epoch in (1, 2):
        response = await broker.fetch_all([], session=(session, epoch))
        assert held(response) == [2]
        (found,) = response.responses[0].partitions
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await broker.harness.hand_over("t", broker, 2)
    response = await broker.fetch_all([], session=(session, 3))
    assert held(response) == [2]
    assert response.responses[0].partitions[0].error_code == 0


async def test_a_new_log_start_is_reported(broker):
    await broker.produce("t", batch(b"a"), index=0)
    session = await begin(broker, offset=0)
    await broker.fetch_all([("t", 0, 1)], session=(session, 1))
    partition = await broker.opened("t", 0)
    await broker.partitions.trim(partition, Offset(1))
    response = await broker.fetch_all([], session=(session, 2))
    assert held(response) == [0]
    assert response.responses[0].partitions[0].log_start_offset == 1


async def test_forgotten_partitions_are_removed_and_an_empty_session_is_closed(broker):
    session = await begin(broker)
    for index in range(PARTITIONS):
        await broker.produce("t", batch(b"a"), index=index)
    response = await broker.fetch_all([], session=(session, 1), forgotten=[("t", 0), ("t", 1)])
    assert held(response) == [2]
    response = await broker.fetch_all([], session=(session, 2), forgotten=[("t", 2)])
    assert (response.error_code, response.session_id, held(response)) == (0, 0, [])
    response = await broker.fetch_all([], session=(session, 3))
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.fetch_sessions.partition_count == 0


async def test_a_wrong_epoch_changes_nothing(broker):
    session = await begin(broker)
    await broker.produce("t", batch(b"a"), index=0)
    for epoch in (2, 7):
        response = await broker.fetch_all([], session=(session, epoch), forgotten=[("t", 0)])
        assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert held(await broker.fetch_all([], session=(session, 1))) == [0]


async def test_a_waiting_request_is_rejected_if_its_session_continued_meanwhile(broker):
    session = await begin(broker)
    parked = asyncio.ensure_future(
        broker.fetch_all([], session=(session, 1), min_bytes=1, max_wait_ms=60_000)
    )
    await asyncio.sleep(0)
    assert held(await broker.fetch_all([], session=(session, 2))) == []
    await broker.produce("t", batch(b"a"), index=0)
    assert (await parked).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert held(await broker.fetch_all([], session=(session, 3))) == [0]


async def test_a_session_with_topic_names_rejects_requests_with_topic_ids(broker):
    session = await begin(broker)
    response = await broker.fetch_all([], session=(session, 1), version=16)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_the_final_request_closes_the_session(broker):
    session = await begin(broker)
    response = await broker.fetch_all([("t", 0, 0)], session=(session, -1))
    assert (response.session_id, held(response)) == (0, [0])
    assert len(broker.fetch_sessions) == 0


async def test_before_version_7_there_are_no_sessions(broker):
    response = await broker.fetch_all([("t", 0, 0)], session=(0, 0), version=6)
    assert held(response) == [0]
    assert len(broker.fetch_sessions) == 0


class Cache:
    """Sessions without a broker."""

    def __init__(self, slots, partitions_max=100):
        self.sessions = FetchSessions(slots, Random(1), partitions_max)

    def begin(self, count, now):
        """Return the id of a new session with this many partitions; 0 if none was created."""
        partitions = [FetchPartition(partition=index) for index in range(count)]
        request = FetchRequest(
            session_epoch=0, topics=[FetchTopic(topic="t", partitions=partitions)]
        )
        call = self.sessions.begin(request, 12, now)
        results = [FetchPartitionResult(index) for index in range(count)]
        return self.sessions.finish(call, results, now)[1]

    def use(self, session, epoch, now):
        request = FetchRequest(session_id=session, session_epoch=epoch)
        return self.sessions.begin(request, 12, now).error_code


def test_a_full_cache_evicts_the_least_recently_used_session():
    cache = Cache(slots=2)
    first, second = cache.begin(5, 0), cache.begin(5, 1)
    assert cache.use(first, 1, 100) == 0
    assert cache.begin(5, EVICTION_S) == 0, "nothing is old enough"
    assert cache.begin(5, EVICTION_S + 2) > 0
    assert cache.use(second, 1, 200) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.use(first, 2, 200) == 0
    assert cache.sessions.evicted_count == 1


def test_a_full_cache_evicts_a_smaller_session_that_is_not_new():
    cache = Cache(slots=2)
    small, large = cache.begin(1, 0), cache.begin(5, 0)
    now = EVICTION_S + 1
    assert (cache.use(small, 1, now), cache.use(large, 1, now)) == (0, 0)
    assert cache.begin(1, now) == 0
    assert cache.begin(3, now) > 0
    assert cache.use(small, 2, now) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_partitions_are_limited_and_counted():
    cache = Cache(slots=10, partitions_max=10)
    first = cache.begin(6, 0)
    assert cache.begin(5, 0) == 0
    assert cache.begin(4, 0) > 0
    request = FetchRequest(
        session_id=first,
        session_epoch=1,
        topics=[FetchTopic(topic="u", partitions=[FetchPartition(partition=0)])],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[0, 1, 99])],
    )
    assert cache.sessions.begin(request, 12, 0).error_code == 0
    assert cache.sessions.partition_count == 9
    assert cache.begin(2, 0) == 0


@pytest.mark.parametrize(
    ("topic", "limit"), [("u", "partitions_max"), ("u", "SESSION_PARTITIONS_MAX"), ("u" * 250, "")]
)
def test_a_session_that_grows_beyond_a_limit_ends(topic, limit, monkeypatch):
    monkeypatch.setattr(fetch_sessions, "SESSION_PARTITIONS_MAX", 6 if "SESSION" in limit else 100)
    cache = Cache(slots=10, partitions_max=6 if limit == "partitions_max" else 100)
    session = cache.begin(6, 0)
    request = FetchRequest(
        session_id=session,
        session_epoch=1,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0)])],
    )
    code = cache.sessions.begin(request, 12, 0).error_code
    assert code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache.sessions), cache.sessions.partition_count) == (0, 0)


def test_no_session_contains_a_name_that_is_too_long():
    sessions = FetchSessions(1, Random(1))
    topics = [FetchTopic(topic="t" * 250, partitions=[FetchPartition(partition=0)])]
    call = sessions.begin(FetchRequest(session_epoch=0, topics=topics), 12, 0)
    assert sessions.finish(call, [FetchPartitionResult(0)], 0)[1] == 0


def test_no_sessions_are_created_if_the_cache_has_no_slots():
    assert Cache(slots=0).begin(3, 0) == 0


def test_the_epoch_restarts_at_1_after_its_maximum():
    cache = Cache(slots=1)
    session = cache.begin(1, 0)
    cache.sessions._sessions[session].epoch = 2**31 - 1
    assert cache.use(session, 2**31 - 1, 0) == 0
    assert cache.use(session, 1, 0) == 0


def test_partitions_are_distinguished_by_topic_id():
    sessions = FetchSessions(1, Random(1))
    topics = [
        FetchTopic(topic_id=UUID(int=number), partitions=[FetchPartition(partition=0)])
        for number in (1, 2)
    ]
    call = sessions.begin(FetchRequest(session_epoch=0, topics=topics), 16, 0)
    assert [item.key for item in call.partitions] == [UUID(int=1), UUID(int=2)]
