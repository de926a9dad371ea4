"""Identical Fetch requests: which of them share one response, and which get their own."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.base.principal import Principal
from penstock.broker.handlers.fetch.fetch_call import FetchCall
from penstock.broker.handlers.fetch.handler import handle_fetch
from penstock.broker.handlers.table import API_RIGHTS
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.audit import AuditLog
from penstock.broker.requests.fetch_coalescing import (
    SEEN_MAX_COUNT,
    TRUST_COUNT,
    SameFetches,
    same_key,
)
from penstock.broker.security.config import SecurityConfig
from penstock.controller.metadata.records import AclEntry
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import fetch as wire_fetch
from tests.support.partition_harness import batch
from tests.support.waiting import PATIENCE_S

LONG_MS = 10 * PATIENCE_S * 1_000
TEST_S = PATIENCE_S


@pytest.fixture
async def one(harness):
    return await harness.leading("t", partitions=2)


@pytest.fixture
def looks(monkeypatch):
    """Count the lookups in the log."""
    counted, real = [], FetchCall.evaluate

    def evaluate(call):
        counted.append(call)
        real(call)

    monkeypatch.setattr(FetchCall, "evaluate", evaluate)
    return counted


def request_of(one, offset=0, indices=(0,), *, wait_ms=LONG_MS, user=None, **options):
    partitions = [
        wire_fetch.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in indices
    ]
    fields = {"min_bytes": 1, "max_bytes": 1 << 26, "session_epoch": -1} | options
    topics = [wire_fetch.FetchTopic(topic="t", partitions=partitions)]
    message = wire_fetch.FetchRequest(max_wait_ms=wait_ms, topics=topics, **fields)
    ctx = one.context(apis.FETCH, 12, message)
    if user is not None:
        ctx.connection.principal = Principal("User", user)
    return ctx


def send_request(one, *args, meanwhile_s=0.0, **options):
    """Send a request; return a task with (correlation id, response for the first
    partition).

    meanwhile_s: how much later than now the request arrives.
    """
    ctx = request_of(one, *args, **options)
    ctx.received_at += meanwhile_s
    response = handle_fetch(one, ctx)

    async def fetched():
        frame = await response if asyncio.iscoroutine(response) else response
        assert int.from_bytes(frame[0][4:8], "big") == ctx.correlation_id
        return one.decode_response(apis.FETCH, 12, frame).responses[0].partitions[0]

    return asyncio.ensure_future(fetched())


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def all_of(*tasks):
    async with asyncio.timeout(TEST_S):
        return await asyncio.gather(*tasks)


async def waiting(one, count, **options):
    """Return that many waiting fetches at the end of the log. The first one waits alone, the second
    one leads the others.
    """
    found = []
    for _ in range(count):
        found.append(send_request(one, **options))
        await turns()
    assert not any(task.done() for task in found)
    return found


async def test_waiting_fetches_share_one_lookup_and_get_separate_responses(one, looks):
    tasks = await waiting(one, 10)
    partition = await one.opened("t")
    before = (partition.requests_count, partition.bytes_out, partition.records_out)
    reads = one.storage.cached_read_count
    await one.produce("t", batch(b"a", b"b"))
    for response in await all_of(*tasks):
        assert bytes(response.records)[61:] == bytes(batch(b"a", b"b"))[61:]
        assert (response.error_code, response.high_watermark) == (0, 2)
    # Two lookups before the wait, two after it.
    assert len(looks) == 4
    after = (partition.requests_count, partition.bytes_out, partition.records_out)
    size_bytes = len(batch(b"a", b"b"))
    # The Produce request counts as a request for the partition, too.
    assert [b - a for a, b in zip(before, after, strict=True)] == [11, 10 * size_bytes, 20]
    assert one.storage.cached_read_count - reads == 10


async def test_fetches_in_one_event_loop_iteration_share_one_lookup(one, looks):
    await one.produce("t", batch(b"a"))
    tasks = [send_request(one) for _ in range(10)]
    assert {len(response.records) for response in await all_of(*tasks)} == {len(batch(b"a"))}
    assert len(looks) == 2
    await turns()
    assert one.coalesced_fetches.response(same_key(request_of(one))) is None


async def test_fetches_join_one_that_is_about_to_wait(one, looks):
    tasks = [send_request(one) for _ in range(10)]
    await turns()
    assert len(looks) == 2
    await one.produce("t", batch(b"a"))
    assert {len(response.records) for response in await all_of(*tasks)} == {len(batch(b"a"))}


async def test_a_record_that_arrives_before_a_follower_waits_is_not_missed(one):
    await waiting(one, 2)
    ctx = request_of(one)
    response = handle_fetch(one, ctx)
    assert asyncio.iscoroutine(response)
    # The first fetch completes before the task of the second one, which waits for it, has started.
    await one.produce("t", batch(b"a"))
    await turns()
    async with asyncio.timeout(TEST_S):
        reply = one.decode_response(apis.FETCH, 12, await response)
    assert len(reply.responses[0].partitions[0].records) == len(batch(b"a"))


async def test_a_record_that_arrives_before_the_leader_waits_reaches_all(one):
    contexts = [request_of(one) for _ in range(5)]
    responses = [handle_fetch(one, ctx) for ctx in contexts]
    await one.produce("t", batch(b"a"))
    await turns()
    for frame in await all_of(*responses):
        response = one.decode_response(apis.FETCH, 12, frame)
        assert len(response.responses[0].partitions[0].records) == len(batch(b"a"))


async def test_followers_keep_waiting_after_the_leader_has_timed_out(one):
    _, leader = await waiting(one, 2, wait_ms=1_000)
    later = [send_request(one, wait_ms=1_000, meanwhile_s=TEST_S) for _ in range(3)]
    assert await leader
    await turns()
    assert not any(task.done() for task in later)
    await one.produce("t", batch(b"a"))
    assert [len(response.records) for response in await all_of(*later)] == 3 * [len(batch(b"a"))]


async def test_followers_outlive_leaders_whose_connections_close(one):
    first, leader, *followers = await waiting(one, 6)
    first.cancel()
    leader.cancel()
    await asyncio.sleep(0)
    # The next follower should become the leader, but its connection closes before.
    followers[0].cancel()
    followers[2].cancel()
    await turns()
    assert leader.cancelled()
    await one.produce("t", batch(b"a"))
    responses = await all_of(followers[1], followers[3])
    assert [len(response.records) for response in responses] == 2 * [len(batch(b"a"))]


async def test_a_cancelled_leader_leaves_no_waiting_fetch(one):
    tasks = await waiting(one, 4)
    key = same_key(request_of(one))
    assert one.coalesced_fetches.wait(key) is not None
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert one.coalesced_fetches.wait(key) is None


async def test_all_followers_get_the_error_when_the_leadership_moves(one):
    tasks = await waiting(one, 5)
    one.harness.lead("t", None)
    assert {response.error_code for response in await all_of(*tasks)} == {
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    }


async def test_all_fetches_get_an_error_if_the_session_ends_before_the_response(one):
    tasks = await waiting(one, 5)
    one.writable = False
    one.partitions.wake_readers()
    assert {response.error_code for response in await all_of(*tasks)} == {
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    }


async def test_fetches_with_other_limits_isolation_levels_or_offsets_are_not_shared(one):
    size_bytes = len(batch(b"a"))
    await one.produce("t", batch(b"a"))
    await one.produce("t", batch(b"b"))
    for _ in range(3):
        requested = [
            send_request(one),
            send_request(one, max_bytes=size_bytes),
            send_request(one, 1),
            send_request(one, isolation_level=1),
        ]
        found = await all_of(
            *requested,
            *[send_request(one), send_request(one, max_bytes=size_bytes), send_request(one, 1)],
        )
        sizes = [len(response.records) // size_bytes for response in found]
        assert sizes == [2, 1, 1, 2, 2, 1, 1]
        assert found[3].aborted_transactions == []


async def test_partitions_take_turns_in_shared_responses(one):
    for index in range(2):
        await one.produce("t", batch(b"a"), index=index)
    firsts = set()
    for _ in range(6):
        ctx = request_of(one, 0, (0, 1), max_bytes=len(batch(b"a")))
        frame = handle_fetch(one, ctx)
        partitions = one.decode_response(apis.FETCH, 12, frame).responses[0].partitions
        firsts.add((ctx.correlation_id % 2, *[bool(part.records) for part in partitions]))
    assert firsts == {(0, True, False), (1, False, True)}


async def test_requests_that_open_or_close_fetch_sessions_are_not_shared(one):
    await one.produce("t", batch(b"a"))
    sessions = set()
    for _ in range(4):
        frame = handle_fetch(one, request_of(one, session_epoch=0))
        sessions.add(one.decode_response(apis.FETCH, 12, frame).session_id)
    assert len(sessions) == len(one.fetch_sessions) == 4
    # A final request with the same bytes closes its session each time.
    ended = next(iter(sessions))
    for _ in range(3):
        handle_fetch(one, request_of(one, session_id=ended, session_epoch=-1))
        assert len(one.fetch_sessions) == 3


async def test_fetches_of_clients_with_a_quota_are_not_shared(one):
    ctx = request_of(one)
    assert same_key(ctx) is not None
    ctx.quota = SimpleNamespace()
    assert same_key(ctx) is None


async def test_unauthorized_clients_do_not_get_a_shared_response(one):
    config = SecurityConfig(authorizer="StandardAuthorizer")
    one.authorizer = Authorizer(config, AuditLog(lambda: 0.0), API_RIGHTS)
    rights = [("ann", Operation.READ), ("bob", Operation.READ), ("ANONYMOUS", Operation.WRITE)]
    for user, operation in rights:
        one.authorizer.index.add(
            AclEntry(
                ResourceType.TOPIC, PatternType.LITERAL, "t", f"User:{user}", "*",
                operation, Permission.ALLOW,
            )
        )  # fmt: skip
    allowed = [send_request(one, user=user) for user in ("ann", "bob", "ann", "bob")]
    denied = [send_request(one, user="eve") for _ in range(3)]
    refused = {response.error_code for response in await all_of(*denied)}
    assert refused == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    await one.produce("t", batch(b"a"))
    assert {len(response.records) for response in await all_of(*allowed)} == {len(batch(b"a"))}
    at_once = [send_request(one, user=user) for user in ("ann", "bob", "bob", "eve", "ann")]
    codes = [response.error_code for response in await all_of(*at_once)]
    assert codes == [0, 0, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]
    assert one.authorizer.audit.denied[Operation.READ, ResourceType.TOPIC] == 4


async def test_cold_records_are_read_separately_for_each_fetch(one, monkeypatch):
    await one.produce("t", batch(b"a"))
    partition = await one.opened("t")
    monkeypatch.setattr(type(partition), "read_cached", lambda *_args, **_options: None)
    tasks = [send_request(one) for _ in range(4)]
    assert {len(response.records) for response in await all_of(*tasks)} == {len(batch(b"a"))}


async def test_only_recurring_fetches_are_shared_and_tracked_keys_are_limited():
    same = SameFetches()
    assert not same.may_recur((12, b"a"))
    assert same.may_recur((12, b"a"))
    new = [same.may_recur((12, b"%d" % number)) for number in range(2 * SEEN_MAX_COUNT)]
    assert new == [True] * TRUST_COUNT + [False] * (2 * SEEN_MAX_COUNT - TRUST_COUNT)
    assert not same.may_recur((12, b"a"))
