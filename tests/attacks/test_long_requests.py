"""Requests with thousands of elements do not block the event loop for other clients."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.errors import ErrorCode
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.handlers.fetch.fetch_call import FetchCall
from penstock.broker.partition.partition import Partition
from penstock.broker.requests import yielding as slices
from penstock.broker.requests.long_requests import AT_ONCE_MAX, LongRequests
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.protocol import apis, framing
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.gen import (
    api_versions,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    produce,
)
from penstock.protocol.primitives import ELEMENTS_AT_ONCE_MAX
from tests.support.attacker import TIMEOUT_S, Attacker
from tests.support.cluster import Cluster
from tests.support.long_requests import LONG_REQUESTS
from tests.support.waiting import until

PATIENT = {"session_timeout_ms": 60_000, "session_grace_ms": 60_000}
"""On a busy machine these requests take longer than the session timeouts of other tests."""

NAMED = 3 * ELEMENTS_AT_ONCE_MAX
"""Elements per request."""

WIDE = 1_100
"""Partitions of the topic: a Fetch request for all of them counts as long."""

BATCH = encode_batch([Record(0, 1_700_000_000_000, b"k", b"v")])

SHORT_RESPONSE_BYTES = 1_000
"""Requests that are rejected as a whole, which needs no thread."""

FEW_TURNS = {
    "CreateDelegationToken",
    "LeaveGroup",
    "OffsetCommit",
    "OffsetFetch",
    "OffsetDelete",
    "TxnOffsetCommit",
    "WriteTxnMarkers",
    "DescribeLogDirs",
    "CreatePartitions",
    "CreatePartitions with replicas",
    "CreateTopics with replicas",
    "ShareAcknowledge",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
}
"""Requests that are rejected as a whole, or whose elements take less than a microsecond each."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, controller_settings=PATIENT) as cluster:
        topics = [NewTopic(name="orders"), NewTopic(name="wide", partitions=WIDE)]
        await cluster.broker.client.create_topics(CreateTopics(topics=topics))
        await cluster.until_served("orders")
        await cluster.until_served("wide")
        yield cluster


@pytest.fixture
async def attacker(cluster: Cluster) -> AsyncIterator[Attacker]:
    async with Attacker.connected(cluster.broker.port) as attacker:
        yield attacker


@pytest.mark.costly("each long request of a client, in the smallest slices")
async def test_other_clients_are_served_during_long_requests(
    cluster: Cluster, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread decodes and encodes; the remaining work is sliced, here into the smallest slices."""
    thread_count = turns_count = 0
    run, next_turn = LongRequests._run, slices._next_turn

    async def counted_run(*arguments: Any) -> Any:
        nonlocal thread_count
        thread_count += 1
        return await run(*arguments)

    async def counted_turn() -> None:
        nonlocal turns_count
        turns_count += 1
        await next_turn()

    monkeypatch.setattr(LongRequests, "_run", counted_run)
    monkeypatch.setattr(slices, "_next_turn", counted_turn)
    for name in ("FIRST_SLICE_S", "SLICE_S", "PAUSE_S"):
        monkeypatch.setattr(slices, name, 0.0)
    wrong: list[str] = []
    for name, long in LONG_REQUESTS.items():
        count = min(NAMED, long.count)
        await attacker.send_request(long.api, long.version, long.make(1))  # whichever comes first
        thread_count = turns_count = 0
        response = await attacker.exchange(long.api, long.version, long.make(count))
        assert response is not None, name
        if thread_count != 2 and (thread_count != 1 or len(response) > SHORT_RESPONSE_BYTES):
            wrong.append(f"{name}: used the thread {thread_count} times")
        if name not in FEW_TURNS and turns_count < count // slices.SLICE_COUNT:
            wrong.append(f"{name}: {turns_count} turns for {count} things")
    assert not wrong, "\n".join(wrong)


async def test_short_requests_use_no_thread(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LongRequests, "_run", None)
    for name, long in LONG_REQUESTS.items():
        assert await attacker.exchange(long.api, long.version, long.make(100)), name


async def test_a_limited_number_of_long_requests_is_decoded_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests beyond AT_ONCE_MAX wait undecoded. Short requests do not wait."""
    begun_count = 0
    may_decode = asyncio.Event()
    decode = LongRequests.decode

    async def held(*arguments: Any) -> None:
        nonlocal begun_count
        begun_count += 1
        await may_decode.wait()
        await decode(*arguments)

    monkeypatch.setattr(LongRequests, "decode", held)
    long = LONG_REQUESTS["DescribeGroups"]

    async def send_request() -> None:
        async with Attacker.connected(cluster.broker.port) as attacker:
            await attacker.send_request(long.api, long.version, long.make(NAMED))

    async with (
        Attacker.connected(cluster.broker.port) as other,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(AT_ONCE_MAX + 4):
            group.create_task(send_request())
        await until(lambda: begun_count == AT_ONCE_MAX)
        await other.send_request(apis.HEARTBEAT, 4, heartbeat.HeartbeatRequest("g", 1, "m"))
        assert begun_count == AT_ONCE_MAX
        may_decode.set()
    assert begun_count == AT_ONCE_MAX + 4


async def test_waiting_fetches_do_not_occupy_slots_of_long_requests(
    cluster: Cluster, attacker: Attacker
) -> None:
    parked = cluster.broker.partitions.get("wide", 0)
    assert isinstance(parked, Partition)
    request = fetch.FetchRequest(
        max_wait_ms=10 * TIMEOUT_S * 1_000,
        min_bytes=1,
        topics=[
            fetch.FetchTopic(
                topic="wide",
                partitions=[fetch.FetchPartition(index % WIDE, -1, 0) for index in range(2 * WIDE)],
            )
        ],
    )

    async def wait() -> None:
        async with Attacker.connected(cluster.broker.port) as waiting:
            await waiting.send_request(apis.FETCH, 12, request)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE_MAX + 1):
            group.create_task(wait())
        await until(lambda: len(parked._fetch_waits) == AT_ONCE_MAX + 1)
        long = LONG_REQUESTS["DescribeGroups"]
        await attacker.send_request(long.api, long.version, long.make(NAMED))
        await attacker.produce("wide", BATCH)


def _join_frame(instance_id: str, tag_count: int) -> bytes:
    """Return a JoinGroup of a static member, with tagged fields that the broker does not know."""
    request = join_group.JoinGroupRequest(
        group_id="parked",
        session_timeout_ms=300_000,
        rebalance_timeout_ms=3_600_000,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol("range", b"")],
    )
    frame = framing.encode_request_frame(apis.JOIN_GROUP, 7, 1, join_group.encode_request, request)
    tags = bytes([tag_count & 0x7F | 0x80, tag_count >> 7]) + b"\x63\x00" * tag_count
    body = bytes(frame[4:-1]) + tags
    return len(body).to_bytes(4, "big") + body


async def test_waiting_members_do_not_occupy_slots_of_long_requests(
    cluster: Cluster, attacker: Attacker
) -> None:
    """A member waits for the others, for as long as its rebalance timeout."""
    groups = cluster.broker.groups
    find = find_coordinator.FindCoordinatorRequest(coordinator_keys=["parked"])

    async def has_coordinator() -> bool:
        response = await attacker.send_request(apis.FIND_COORDINATOR, 4, find)
        return not response.coordinators[0].error_code

    await until(has_coordinator)
    attacker.send(_join_frame("first", 0))
    assert await attacker.frame() is not None

    async def wait(instance_id: str) -> None:
        async with Attacker.connected(cluster.broker.port) as waiting:
            waiting.send(_join_frame(instance_id, NAMED))
            assert await waiting.frame() is not None

    async with asyncio.TaskGroup() as tasks:
        for number in range(AT_ONCE_MAX + 1):
            tasks.create_task(wait(f"waiting-{number}"))
        await until(lambda: len(_members(groups)) == AT_ONCE_MAX + 2)
        long = LONG_REQUESTS["DescribeGroups"]
        await attacker.send_request(long.api, long.version, long.make(NAMED))
        attacker.send(_join_frame("first", 0))
        assert await attacker.frame() is not None


def _members(groups: GroupCoordinator) -> Sequence[object]:
    described = groups.describe_group("parked")
    return () if isinstance(described, ErrorCode) else described.members


async def test_tagged_fields_are_limited_before_authentication(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE class: amplification by tagged fields. A request with too many closes the connection,
    without the cost of a thread.
    """
    monkeypatch.setattr(LongRequests, "_run", None)
    frame = framing.encode_request_frame(
        apis.API_VERSIONS, 3, 1, api_versions.encode_request, api_versions.ApiVersionsRequest()
    )
    many = ELEMENTS_AT_ONCE_MAX + 1
    tags = bytes([many & 0x7F | 0x80, many >> 7]) + b"\x63\x00" * many
    body = bytes(frame[4:-1]) + tags
    attacker.send(len(body).to_bytes(4, "big") + body)
    assert await attacker.frame() is None


# --- what slicing must not change -----------------------------------------------------------------


def _produce_request(*topics: tuple[str, int]) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        acks=-1,
        timeout_ms=TIMEOUT_S * 1_000,
        topic_data=[
            produce.TopicProduceData(
                name=name, partition_data=[produce.PartitionProduceData(index, bytes(BATCH))]
            )
            for name, index in topics
        ],
    )


async def test_records_of_a_long_produce_request_keep_their_order(attacker: Attacker) -> None:
    """The records of later requests come after those of a long request. A request may contain each
    partition only once.
    """
    named = [("orders", 0), *((f"n{number}", 0) for number in range(NAMED // 2)), ("wide", 5)]
    requests = [_produce_request(*named, ("orders", 0)), _produce_request(("orders", 0))]
    for request in requests:
        attacker.send(
            framing.encode_request_frame(apis.PRODUCE, 9, 1, produce.encode_request, request)
        )
    responses: list[list[Any]] = []
    for _ in requests:
        frame = await attacker.frame()
        assert frame is not None
        _, at = framing.parse_response_header(apis.PRODUCE, 9, frame)
        response = framing.decode_body(produce.decode_response, frame, at, 9, 2 * NAMED)
        responses.append([topic.partition_responses[0] for topic in response.responses])
    (first, *unknown, wide, twice), (later,) = responses
    assert [(item.error_code, item.base_offset) for item in (first, wide, later)] == [
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 1),
    ]
    assert {item.error_code for item in unknown} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert twice.error_code == ErrorCode.INVALID_REQUEST


async def test_a_rejected_long_produce_request_with_acks_0_closes_the_connection(
    cluster: Cluster, attacker: Attacker
) -> None:
    """The same applies to short requests."""
    request = _produce_request(("orders", 0), *((f"n{number}", 0) for number in range(NAMED // 2)))
    request.acks = 0
    assert await attacker.exchange(apis.PRODUCE, 9, request) is None
    async with Attacker.connected(cluster.broker.port) as other:
        assert (await other.produce("orders", BATCH)).base_offset == 1


async def test_a_long_fetch_returns_records_that_arrive_during_its_slices(
    cluster: Cluster, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that arrives while the slices run completes the fetch, as a later record does."""
    evaluate = FetchCall._evaluate_in_slices
    slow = asyncio.Event()

    async def slowly(call: FetchCall) -> None:
        await evaluate(call)
        if not slow.is_set():
            slow.set()
            async with Attacker.connected(cluster.broker.port) as other:
                assert (await other.produce("wide", BATCH)).error_code == ErrorCode.NONE

    monkeypatch.setattr(FetchCall, "_evaluate_in_slices", slowly)
    request = fetch.FetchRequest(
        max_wait_ms=10 * TIMEOUT_S * 1_000,
        min_bytes=1,
        topics=[
            fetch.FetchTopic(
                topic="wide",
                partitions=[fetch.FetchPartition(index, -1, 0) for index in range(WIDE)],
            )
        ],
    )
    response = await attacker.send_request(apis.FETCH, 12, request)
    found = response.responses[0].partitions
    assert [item.partition_index for item in found if item.records] == [0]
    request.topics[0].partitions[0].fetch_offset = 1
    waiting = asyncio.create_task(attacker.send_request(apis.FETCH, 12, request))
    async with Attacker.connected(cluster.broker.port) as other:
        await other.produce("wide", BATCH)
        found = (await waiting).responses[0].partitions
    assert [item.partition_index for item in found if item.records] == [0]
