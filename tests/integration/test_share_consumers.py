"""Members of share groups (KIP-932) over real sockets: record locks, sessions, start offsets,
transactions, a moving log start offset, and leader changes.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.base.ids import NodeId, Offset
from penstock.broker.handlers.share import acknowledge
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.dispatch import RequestDispatcher
from penstock.broker.requests.node import Handler
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from penstock.protocol.apis import SHARE_FETCH
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.config import StreamConfig
from penstock.stream.errors import OffsetOutOfRange
from tests.support.clients import PATIENT_TRANSACTION, TIMEOUT_S, produce
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.in_thread import in_thread
from tests.support.share_client import ACCEPT, REJECT, RELEASE, ShareMember
from tests.support.waiting import PATIENCE_S, until, wait_until

TOPIC, GROUP = "jobs", "workers"
HERE = (TOPIC, 0)
GROUP_RESOURCE = 32
WAIT_MS = 20_000
"""Wait time of a fetch that an event ends early; no test waits this long."""
_LONG_WAIT_MS = 250_000
"""Longer than any test may take."""

pytestmark = pytest.mark.cluster(
    brokers=2,
    topics={TOPIC: 1},
    stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500),
    group_share_min_record_lock_duration_ms=1_000,
    group_share_delivery_count_limit=2,
    group_share_partition_max_record_locks=100,
    group_share_max_share_sessions=3,
)


def leader_address(cluster: Cluster) -> str:
    return f"127.0.0.1:{cluster.brokers[cluster.leader_of(TOPIC)].port}"


def begin(cluster: Cluster, **configs: str) -> None:
    """Let the group start at the log start offset, with these configs."""
    values = {"share.auto.offset.reset": "earliest"} | {
        f"share.{name.replace('_', '.')}": value for name, value in configs.items()
    }
    assert alter_configs(cluster.bootstrap.split(",")[0], (GROUP_RESOURCE, GROUP), values)[0] == 0


@contextmanager
def members(cluster: Cluster, count: int = 1) -> Iterator[list[ShareMember]]:
    """Yield members connected to the leader. The coordinator may be the other broker."""
    found: list[ShareMember] = []
    try:
        for _ in range(count):
            joined = _joined(cluster)
            found.append(ShareMember(leader_address(cluster), GROUP, joined))
        yield found
    finally:
        for member in found:
            member.close()


def _joined(cluster: Cluster) -> str:
    """Join the group at its coordinator, which initializes its share partitions."""
    for broker in cluster.brokers.values():
        broker_address = f"127.0.0.1:{broker.port}"
        with closing(ShareMember(broker_address, GROUP)) as member:
            if member.coordinates_here():
                return member.join(TOPIC).member_id
    raise AssertionError("no broker coordinates the group")


def values(count: int) -> list[bytes]:
    return [b"job-%d" % number for number in range(count)]


@in_thread
def test_record_with_an_expired_lock_goes_to_a_waiting_member(cluster: Cluster) -> None:
    begin(cluster, record_lock_duration_ms="5000")
    produce(cluster.bootstrap, TOPIC, values(3))
    with members(cluster, 2) as (slow, other):
        assert slow.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 2, 1)]
        assert other.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 2, 2)]
        late = slow.acknowledge({HERE: [(0, 2, [ACCEPT])]})
        assert _code(late) == ErrorCode.INVALID_RECORD_STATE
        assert _code(other.acknowledge({HERE: [(0, 2, [ACCEPT])]})) == ErrorCode.NONE


@in_thread
def test_released_records_wake_a_waiting_member(cluster: Cluster) -> None:
    begin(cluster)
    produce(cluster.bootstrap, TOPIC, values(4))
    with members(cluster, 2) as (first, second), ThreadPoolExecutor(1) as pool:
        assert first.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 3, 1)]
        waiting = pool.submit(second.acquired, HERE, max_wait_ms=WAIT_MS)
        acks = [(0, 1, [ACCEPT]), (2, 2, [RELEASE]), (3, 3, [REJECT])]
        assert _code(first.acknowledge({HERE: acks})) == ErrorCode.NONE
        assert waiting.result(TIMEOUT_S) == [(2, 2, 2)]
        # The second delivery is the last one.
        assert _code(second.acknowledge({HERE: [(2, 2, [RELEASE])]})) == ErrorCode.NONE
        produce(cluster.bootstrap, TOPIC, [b"next"])
        assert first.acquired(max_wait_ms=WAIT_MS) == [(4, 4, 1)]


async def test_fetch_continues_after_records_are_deleted_while_it_reads(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read from the store fails, and no new record arrives afterwards."""
    reading, deleted = threading.Event(), threading.Event()
    read = Partition.read

    async def slow_read(partition: Partition, offset: Offset, *args: Any, **kwargs: Any) -> Any:
        if partition.topic_name == TOPIC:
            reading.set()
            await asyncio.to_thread(deleted.wait, TIMEOUT_S)
            start, stream_id = partition.log_start_offset, partition.log.data.stream_id
            if offset < start:  # the objects may already be deleted
                raise OffsetOutOfRange(stream_id, offset, start, partition.high_watermark)
        return await read(partition, offset, *args, **kwargs)

    def run() -> None:
        begin(cluster)
        produce(cluster.bootstrap, TOPIC, values(3))
        produce(cluster.bootstrap, TOPIC, values(3))
        with members(cluster) as (member,), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(member.acquired, HERE, max_wait_ms=_LONG_WAIT_MS)
            assert reading.wait(TIMEOUT_S)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            admin.delete_records([TopicPartition(TOPIC, 0, 3)])[TopicPartition(TOPIC, 0)].result(
                PATIENCE_S
            )
            deleted.set()
            assert waiting.result(TIMEOUT_S) == [(3, 5, 1)]

    monkeypatch.setattr(Partition, "read_cached", lambda *_, **__: None)
    monkeypatch.setattr(Partition, "read", slow_read)
    try:
        await asyncio.to_thread(run)
    finally:
        deleted.set()


async def test_records_that_arrive_before_the_wait_starts_end_the_fetch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work runs between the first lookup of a fetch and the task that waits."""
    looked, produced = threading.Event(), threading.Event()
    finish = RequestDispatcher._finish

    async def late_finish(
        dispatcher: RequestDispatcher, handler: Handler, ctx: RequestContext, work: Any
    ) -> Any:
        if ctx.api_key == SHARE_FETCH.key:
            looked.set()
            await asyncio.to_thread(produced.wait, TIMEOUT_S)
        return await finish(dispatcher, handler, ctx, work)

    def run() -> None:
        # Otherwise the expiring lock would wake the fetch.
        begin(cluster, record_lock_duration_ms="60000")
        produce(cluster.bootstrap, TOPIC, values(1))
        with members(cluster) as (member,), ThreadPoolExecutor(1) as pool:
            assert member.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 0, 1)]
            monkeypatch.setattr(RequestDispatcher, "_finish", late_finish)
            waiting = pool.submit(member.acquired, max_wait_ms=_LONG_WAIT_MS)
            assert looked.wait(TIMEOUT_S)
            produce(cluster.bootstrap, TOPIC, values(1))
            produced.set()
            assert waiting.result(TIMEOUT_S)[-1][1] == 1

    await asyncio.to_thread(run)


@in_thread
def test_each_new_record_wakes_one_waiting_member(cluster: Cluster) -> None:
    begin(cluster)
    with members(cluster, 3) as workers, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(one.acquired, HERE, max_wait_ms=WAIT_MS) for one in workers]
        for number in range(3):
            produce(cluster.bootstrap, TOPIC, [b"%d" % number])
        got = sorted(item for one in waiting for item in one.result(TIMEOUT_S))
    offsets = [at for first, last, _ in got for at in range(first, last + 1)]
    assert offsets == [0, 1, 2]


async def test_closed_connection_releases_its_records(cluster: Cluster) -> None:
    def run() -> None:
        begin(cluster, record_lock_duration_ms="15000")
        produce(cluster.bootstrap, TOPIC, values(3))
        with members(cluster, 2) as (first, second):
            assert first.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 2, 1)]
            first.close()
            assert second.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 2, 2)]

    await asyncio.to_thread(run)
    await until(lambda: all(not len(broker.share_sessions) for broker in cluster.brokers.values()))
    await until(lambda: all(not len(broker.shares) for broker in cluster.brokers.values()))


async def test_acknowledgment_of_a_replaced_session_has_no_effect(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is replaced while the request is being authorized, and its locks expire."""
    began, may_go_on = threading.Event(), threading.Event()

    async def check(*_: object) -> frozenset[UUID]:
        began.set()
        await asyncio.to_thread(may_go_on.wait, TIMEOUT_S)
        return frozenset()

    monkeypatch.setattr(acknowledge, "find_unreadable_topics", check)

    def run() -> None:
        begin(cluster, record_lock_duration_ms="8000")
        produce(cluster.bootstrap, TOPIC, values(3))
        with members(cluster) as (member,), ThreadPoolExecutor(1) as pool:
            assert member.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 2, 1)]
            late = pool.submit(member.acknowledge, {HERE: [(0, 2, [REJECT])]})
            assert began.wait(TIMEOUT_S)
            with closing(ShareMember(member.address, GROUP, member.member_id)) as again:
                assert again.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 2, 2)]
                may_go_on.set()
                assert _code(late.result(TIMEOUT_S)) == ErrorCode.INVALID_RECORD_STATE
                accepted = again.acknowledge({HERE: [(0, 2, [ACCEPT])]})
                assert _code(accepted) == ErrorCode.NONE

    await asyncio.to_thread(run)


@in_thread
def test_locked_records_are_limited(cluster: Cluster) -> None:
    """At the limit a member waits until others have acknowledged records."""
    begin(cluster)
    produce(cluster.bootstrap, TOPIC, values(150), batch_num_messages=10)
    with members(cluster, 2) as (first, second), ThreadPoolExecutor(1) as pool:
        got = first.acquired(HERE, max_wait_ms=WAIT_MS, max_records=1_000)
        end = got[-1][1] + 1
        assert 100 <= end < 110
        assert second.acquired(HERE, max_wait_ms=100) == []
        waiting = pool.submit(second.acquired, max_wait_ms=WAIT_MS)
        assert _code(first.acknowledge({HERE: [(0, 49, [ACCEPT])]})) == ErrorCode.NONE
        assert waiting.result(TIMEOUT_S)[0][0] == end


@in_thread
def test_share_sessions_are_limited(cluster: Cluster) -> None:
    with members(cluster, 4) as workers:
        codes = [one.fetch(HERE, max_wait_ms=0)["error_code"] for one in workers]
        assert codes == [0, 0, 0, ErrorCode.SHARE_SESSION_LIMIT_REACHED]
        workers[0].fetch(epoch=-1)
        assert workers[3].fetch(HERE, max_wait_ms=0)["error_code"] == 0


@in_thread
def test_deleted_records_are_skipped(cluster: Cluster) -> None:
    begin(cluster)
    produce(cluster.bootstrap, TOPIC, values(30), batch_num_messages=10)
    with members(cluster) as (one,):
        first, last, _ = one.acquired(HERE, max_wait_ms=WAIT_MS, max_records=10)[0]
        assert (first, last) == (0, 9)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (deleted,) = admin.delete_records([TopicPartition(TOPIC, 0, 15)]).values()
        assert deleted.result(TIMEOUT_S).low_watermark == 15
        assert one.acquired(max_wait_ms=WAIT_MS) == [(15, 29, 1)]
        # Acknowledging deleted records succeeds, whether or not their delivery was complete.
        assert _code(one.acknowledge({HERE: [(0, 9, [RELEASE])]})) == ErrorCode.NONE
        assert _code(one.acknowledge({HERE: [(15, 29, [ACCEPT])]})) == ErrorCode.NONE


@in_thread
def test_aborted_records_are_delivered_only_to_read_uncommitted_groups(
    cluster: Cluster,
) -> None:
    begin(cluster, isolation_level="read_committed")
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "t", "linger.ms": 0}
        | PATIENT_TRANSACTION
    )
    producer.init_transactions(TIMEOUT_S)
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for value in values(2):
            producer.produce(TOPIC, value, partition=0)
        producer.flush(TIMEOUT_S)
        ends(TIMEOUT_S)
    produce(cluster.bootstrap, TOPIC, values(1))
    producer.begin_transaction()
    producer.produce(TOPIC, b"open", partition=0)
    producer.flush(TIMEOUT_S)
    with members(cluster) as (one,), ThreadPoolExecutor(1) as pool:
        got = one.acquired(HERE, max_wait_ms=WAIT_MS)
        offsets = {at for first, last, _ in got for at in range(first, last + 1)}
        # 0 and 1 are committed by 2, 3 and 4 are aborted by 5, and 6 is not transactional.
        assert {0, 1, 6} <= offsets
        assert not {3, 4, 7} & offsets
        waiting = pool.submit(one.acquired, max_wait_ms=WAIT_MS, acks={HERE: _accept(got)})
        producer.commit_transaction(TIMEOUT_S)
        assert waiting.result(TIMEOUT_S)[0][0] == 7


async def test_new_leader_continues_with_the_state_of_the_group(cluster: Cluster) -> None:
    """A start offset at the end of the log is kept although no record was delivered, delivery
    counts continue, and accepted records are not delivered again.
    """
    old = cluster.leader_of(TOPIC)

    def before() -> None:
        produce(cluster.bootstrap, TOPIC, values(5))
        with members(cluster) as (one,):
            one.fetch(HERE, max_wait_ms=0)
            wait_until(lambda: _starts_at(cluster, 5))
            produce(cluster.bootstrap, TOPIC, values(10))
            assert one.acquired(max_wait_ms=WAIT_MS) == [(5, 14, 1)]
            acks = [(5, 6, [ACCEPT]), (8, 9, [ACCEPT]), (10, 14, [RELEASE])]
            assert _code(one.acknowledge({HERE: acks})) == ErrorCode.NONE

    def after() -> None:
        with members(cluster) as (one,):
            got = one.acquired(HERE, max_wait_ms=WAIT_MS)
            while len(got) < 2:
                got += one.acquired(max_wait_ms=WAIT_MS)
            assert got == [(7, 7, 2), (10, 14, 2)]

    await asyncio.to_thread(before)
    await cluster.kill_broker(old)
    await until(lambda: cluster.leader_of(TOPIC) not in (old, -1))
    await asyncio.to_thread(after)


async def test_members_get_the_new_leader_after_a_move(cluster: Cluster) -> None:
    old = cluster.leader_of(TOPIC)
    (other,) = cluster.brokers.keys() - {old}

    def before() -> ShareMember:
        begin(cluster)
        produce(cluster.bootstrap, TOPIC, values(5))
        member = ShareMember(leader_address(cluster), GROUP, _joined(cluster))
        assert member.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 4, 1)]
        return member

    member = await asyncio.to_thread(before)
    with closing(member):
        target = PartitionTarget(topic=TOPIC, partition=0, replicas=[NodeId(other)])
        request = AlterReassignments(partitions=[target])
        waiting = asyncio.create_task(asyncio.to_thread(member.fetch, max_wait_ms=WAIT_MS))
        items = (await cluster.broker.client.alter_reassignments(request)).items
        assert not any(item.status for item in items), items
        response = await waiting
        (partition,) = response["responses"][0]["partitions"]
        assert partition["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: cluster.leader_of(TOPIC) == other)
        response = await asyncio.to_thread(member.acknowledge, {HERE: [(0, 4, [ACCEPT])]})
        (partition,) = response["responses"][0]["partitions"]
        assert partition["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition["current_leader"]["leader_id"] == other
        assert [node["node_id"] for node in response["node_endpoints"]] == [other]


async def test_records_outside_the_log_cache_are_delivered(cluster: Cluster) -> None:
    """After a planned move the cache of the new leader is empty."""
    old = cluster.leader_of(TOPIC)

    def before() -> None:
        begin(cluster)
        produce(cluster.bootstrap, TOPIC, values(80), batch_num_messages=20)

    def after() -> None:
        with members(cluster, 2) as (first, second):
            got = first.acquired(HERE, max_wait_ms=WAIT_MS, max_records=20)
            assert got == [(0, 19, 1)]
            # At least one batch is delivered.
            assert first.acquired(max_wait_ms=WAIT_MS, max_bytes=1) == [(20, 39, 1)]
            assert second.acquired(HERE, max_wait_ms=WAIT_MS) == [(40, 79, 1)]

    await asyncio.to_thread(before)
    await cluster.stop_broker(old)
    await until(lambda: cluster.leader_of(TOPIC) not in (old, -1))
    await asyncio.to_thread(after)


async def test_deleted_topic_ends_its_share_partitions(cluster: Cluster) -> None:
    def run() -> None:
        begin(cluster)
        produce(cluster.bootstrap, TOPIC, values(3))
        with members(cluster) as (one,), ThreadPoolExecutor(1) as pool:
            assert one.acquired(HERE, max_wait_ms=WAIT_MS) == [(0, 2, 1)]
            waiting = pool.submit(one.fetch, max_wait_ms=WAIT_MS)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
            (partition,) = waiting.result(TIMEOUT_S)["responses"][0]["partitions"]
            assert partition["error_code"] in (
                ErrorCode.UNKNOWN_TOPIC_ID,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
            response = one.acknowledge({HERE: [(0, 2, [ACCEPT])]})
            assert _code(response) == ErrorCode.UNKNOWN_TOPIC_ID

    await asyncio.to_thread(run)
    await until(lambda: all(not len(broker.shares) for broker in cluster.brokers.values()))


@in_thread
def test_group_may_start_at_records_of_the_last_minute(cluster: Cluster) -> None:
    begin(cluster, auto_offset_reset="by_duration:PT1M")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    now_ms = cluster.broker.now_ms()
    for number, age_ms in enumerate((3_600_000, 120_000, 30_000, 0)):
        producer.produce(TOPIC, b"%d" % number, partition=0, timestamp=now_ms - age_ms)
        assert producer.flush(TIMEOUT_S) == 0
    with members(cluster) as (one,):
        assert one.acquired(HERE, max_wait_ms=WAIT_MS) == [(2, 3, 1)]


def _starts_at(cluster: Cluster, offset: int) -> bool:
    shares = cluster.brokers[cluster.leader_of(TOPIC)].shares
    return any(share.window is not None and share.window.start_offset == offset for share in shares)


def _accept(got: list[tuple[int, int, int]]) -> list[tuple[int, int, list[int]]]:
    return [(first, last, [ACCEPT]) for first, last, _ in got]


def _code(response: Any) -> int:
    """Return the error code of the only partition in a ShareAcknowledge response."""
    assert response["error_code"] == 0
    (partition,) = response["responses"][0]["partitions"]
    return int(partition["error_code"])
