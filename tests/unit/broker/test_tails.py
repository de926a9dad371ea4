"""Apply tails reported by leaders, without sockets."""

from inspect import isawaitable
from random import Random
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.broker.handlers.fetch.handler import handle_fetch
from penstock.broker.handlers.table import API_RIGHTS
from penstock.broker.partition.aborted_transactions import TxnStream
from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.partition.transactions import AbortedTail, Transactions
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.audit import AuditLog
from penstock.broker.requests.fetch_sessions import FetchSessions
from penstock.broker.security.config import SecurityConfig
from penstock.broker.tail import redirects
from penstock.broker.tail.links import FETCH_VERSION
from penstock.broker.tail.partition import TailPartition
from penstock.broker.tail.reported_tail import (
    SLOTS_MAX,
    ReportedTail,
    decode_reported_tail,
    encode_reported_tail,
)
from penstock.broker.tail.session import LEAVES_BYTES, TailSession
from penstock.controller.metadata.topics import PartitionKey
from penstock.protocol import apis
from penstock.protocol.batch.control import Marker
from penstock.protocol.batch.records import decode_records
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.errors import WireError
from penstock.protocol.fetch import FetchPartitionResult
from penstock.protocol.gen.fetch import FetchResponse, ReplicaState
from penstock.stream.format.keys import wal_key
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import IN_STORE, BrokerIncarnation, StreamRange
from penstock.stream.wal.slots import SlotRange, SlotTable
from tests.support.partition_harness import batch

STREAM = StreamId(7)
OTHER = StreamId(8)
LEADER = BrokerIncarnation(NodeId(1), NodeEpoch(5))
ME = BrokerIncarnation(NodeId(2), NodeEpoch(6))
KEY = PartitionKey(UUID(int=1), 0)


def part(stream_id: StreamId, start: int, end: int) -> StreamRange:
    count = end - start
    return StreamRange(stream_id, Offset(start), Offset(end), count, 10 * count, Millis(3))


def slot(sequence: int, start: int, end: int) -> SlotRange:
    return SlotRange(WalSequence(sequence), 1_000, part(STREAM, start, end))


def report(
    end: int,
    *slots: SlotRange,
    since: int = 0,
    aborted: tuple[AbortedTransaction, ...] = (),
    wal_store: WalStoreId = IN_STORE,
) -> ReportedTail:
    return decode_reported_tail(
        encode_reported_tail(
            LEADER.node_epoch,
            Offset(end),
            list(slots),
            AbortedTail(Offset(since), aborted),
            wal_store,
        )
    )


def tail_at(committed_end: int) -> TailPartition:
    found = CommittedPartition(
        KEY,
        LEADER,
        StreamEpoch(3),
        STREAM,
        Offset(0),
        Offset(committed_end),
        TxnStream(OTHER, Offset(0), Offset(0)),
        cast("Any", None),
    )
    return TailPartition(found, 0.0)


def starts(tail: TailPartition, offset: int) -> list[int]:
    """Return the start offsets of the ranges that a fetch from an uncommitted offset may read."""
    view = tail.view(Offset(offset), Offset(offset), committed=False)
    return [] if view is None else [source.range.start_offset for source in view.ranges]


# --- WAL slots ------------------------------------------------------------------------------------


def test_the_tail_of_a_stream_contains_its_records_in_slots() -> None:
    table = SlotTable()
    for sequence in range(5):
        parts = [part(OTHER, sequence, sequence + 1)]
        if sequence != 2:
            parts.append(part(STREAM, 10 * sequence, 10 * sequence + 10 * (1 + (sequence == 1))))
        table.add(WalSequence(sequence), f"k{sequence}", 100, parts)
    found = table.tail(STREAM, Offset(0), 10)
    assert [(item.sequence, item.range.start_offset) for item in found] == [
        (0, 0),
        (1, 10),
        (3, 30),
        (4, 40),
    ]
    assert [item.sequence for item in table.tail(STREAM, Offset(15), 10)] == [1, 3, 4]
    assert [item.sequence for item in table.tail(STREAM, Offset(30), 1)] == [3]
    assert table.tail(STREAM, Offset(50), 10) == []
    table.commit(WalSequence(2), lambda _: False)
    assert [item.sequence for item in table.tail(STREAM, Offset(0), 10)] == [3, 4]


def test_aborted_transactions_are_reported_from_their_markers_on() -> None:
    known = Transactions(Offset(0), aborted_count_max=2)
    for producer_id in range(4):
        known.begin(producer_id, Offset(10 * producer_id))
        known.end(
            Marker(producer_id, 0, committed=False, coordinator_epoch=0),
            Offset(10 * producer_id + 5),
        )
    assert known.aborted_since(Offset(20), Offset(36)) == AbortedTail(
        Offset(20), [AbortedTransaction(2, 20, 25), AbortedTransaction(3, 30, 35)]
    )
    assert known.aborted_since(Offset(0), Offset(35)) == AbortedTail(
        Offset(16), [AbortedTransaction(2, 20, 25)]
    ), "older ones are forgotten, and the last marker is not durable"


# --- leader responses -----------------------------------------------------------------------------


def test_the_end_offset_of_a_full_response_is_that_of_its_last_slot() -> None:
    slots = [slot(number, number, number + 1) for number in range(SLOTS_MAX)]
    assert report(500, *slots).end_offset == SLOTS_MAX
    assert report(500, *slots[:-1]).end_offset == 500


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff" * 20,
        msgspec.msgpack.encode([1, 2, [], 0, None]),
        msgspec.msgpack.encode([1, -2, [], 0, []]),
        msgspec.msgpack.encode([1, 2, [[-1, 100, 0, 2, 2, 50, -1]], 0, []]),
        msgspec.msgpack.encode([1, 2**64 - 1, [], 0, []]),
    ],
)
def test_malformed_tails_are_rejected(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_reported_tail(data)


# --- a tail ---------------------------------------------------------------------------------------


def test_a_tail_returns_the_slots_from_an_offset_on() -> None:
    tail = tail_at(10)
    assert not tail.covers(Offset(10), committed=False)
    tail.take(30, 30, 0, report(30, slot(3, 10, 20), slot(4, 20, 30)))
    assert starts(tail, 10) == [10, 20]
    assert starts(tail, 25) == [20]
    assert starts(tail, 30) == starts(tail, 9) == []
    tail.take(40, 40, 0, report(40, slot(6, 30, 40)))
    assert starts(tail, 20) == [20, 30]
    view = tail.view(Offset(30), Offset(10), committed=False)
    assert view is not None
    assert view.ranges[0].key == wal_key(LEADER, WalSequence(6), IN_STORE)
    tail.forget_committed(Offset(30))
    assert starts(tail, 29) == []
    assert starts(tail, 30) == [30]
    other = WalStoreId(1)
    tail.take(50, 50, 0, report(50, slot(9, 40, 50), wal_store=other))
    view = tail.view(Offset(40), Offset(10), committed=False)
    assert view is not None
    assert view.ranges[0].key == wal_key(LEADER, WalSequence(9), other)
    tail.forget_committed(Offset(40))
    assert starts(tail, 39) == []


def test_records_committed_between_two_responses_are_not_in_the_tail() -> None:
    tail = tail_at(10)
    tail.take(20, 20, 0, report(20, slot(3, 10, 20)))
    tail.take(60, 60, 0, report(60, slot(9, 50, 60)))
    assert starts(tail, 10) == starts(tail, 20) == starts(tail, 49) == []
    assert starts(tail, 50) == [50]
    tail.take(80, 80, 0, report(80))
    assert starts(tail, 50) == starts(tail, 79) == []
    view = tail.view(Offset(50), Offset(80), committed=False)
    assert view is not None
    assert (view.ranges, view.end_offset) == ((), 80), "all of it is in objects"


def test_read_committed_ends_at_the_last_stable_offset() -> None:
    tail = tail_at(10)
    tail.take(30, 15, 0, report(30, slot(3, 10, 30)))
    assert tail.readable_end(committed=True) == 15
    assert tail.readable_end(committed=False) == 30


def test_read_committed_requires_all_aborted_transactions() -> None:
    first, second = AbortedTransaction(1, 12, 18), AbortedTransaction(2, 31, 38)
    tail = tail_at(10)
    tail.take(30, 30, 0, report(30, slot(3, 10, 30), since=10, aborted=(first,)))
    assert tail.covers(Offset(10), committed=True)
    assert not tail.covers(Offset(9), committed=True), "a marker at 9 may have been committed"
    tail.take(40, 40, 0, report(40, slot(4, 30, 40), since=30, aborted=(second,)))
    assert tail.covers(Offset(10), committed=True), "nothing was aborted between both responses"
    view = tail.view(Offset(10), Offset(10), committed=True)
    assert view is not None
    tail.forget_committed(Offset(40))
    assert view.aborted_within(Offset(10), Offset(40)) == [first, second], "of the moment it began"
    assert view.aborted_within(Offset(19), Offset(31)) == []
    tail.take(90, 90, 0, report(90, slot(8, 80, 90), since=80))
    assert not tail.covers(Offset(40), committed=True), "a marker in [40, 80) is unknown"
    assert tail.covers(Offset(40), committed=False)
    assert tail.covers(Offset(80), committed=True)


def test_an_abort_is_included_while_its_marker_is_uncommitted() -> None:
    below, at = AbortedTransaction(1, 12, 19), AbortedTransaction(2, 15, 20)
    tail = tail_at(10)
    slots = slot(3, 10, 20), slot(4, 20, 30)
    tail.take(30, 30, 0, report(30, *slots, since=10, aborted=(below, at)))
    tail.forget_committed(Offset(20))
    view = tail.view(Offset(20), Offset(20), committed=True)
    assert view is not None
    assert view.aborted_within(Offset(10), Offset(30)) == [at]


def test_offsets_without_the_aborted_transactions_below_them_are_ignored() -> None:
    """A response without room for a partition still contains its offsets."""
    aborted = AbortedTransaction(1, 12, 28)
    tail = tail_at(10)
    tail.take(30, 30, 0, None)
    assert not tail.is_known
    tail.take(20, 12, 0, report(20, slot(3, 10, 20), since=10))
    tail.take(30, 30, 0, None)
    assert tail.readable_end(committed=True) == 12
    tail.take(30, 30, 0, report(30, slot(4, 20, 30), since=10, aborted=(aborted,)))
    view = tail.view(Offset(12), Offset(10), committed=True)
    assert view is not None
    assert view.aborted_within(Offset(12), Offset(30)) == [aborted]


def test_waiting_fetches_are_woken_by_readable_records() -> None:
    woken: list[str] = []
    tail = tail_at(10)
    tail.add_fetch_wait(FetchWait(1, lambda: woken.append("known")))
    tail.notify(tail.take(10, 10, 0, None))
    assert woken == ["known"]
    tail.add_fetch_wait(FetchWait(150, lambda: woken.append("bytes")))
    tail.add_fetch_wait(FetchWait(1, lambda: woken.append("stable"), reads_committed=True))
    tail.notify(tail.take(20, 10, 0, report(20, slot(3, 10, 20))))
    assert woken == ["known"]
    tail.notify(tail.take(25, 10, 0, report(25, slot(4, 20, 25))))
    assert woken == ["known", "bytes"]
    tail.notify(tail.take(26, 26, 0, report(26, slot(5, 25, 26))))
    assert woken == ["known", "bytes", "stable"]
    tail.add_fetch_wait(FetchWait(1_000, lambda: woken.append("committed")))
    tail.notify(tail.take(40, 40, 0, report(40)))
    assert woken[-1] == "committed", "what is new is in objects"
    tail.add_fetch_wait(FetchWait(1_000, lambda: woken.append("over")))
    tail.end()
    assert woken[-1] == "over"


# --- the session ----------------------------------------------------------------------------------


def test_a_session_contains_only_changed_partitions() -> None:
    """The other side is the `FetchSessions` of a real leader."""
    leader, session = [FetchSessions(10, Random(1))], TailSession(ME)
    tails = {PartitionKey(UUID(int=1), number): tail_at(10) for number in range(3)}

    def exchange(news: dict[int, int]) -> list[int]:
        """Advance the high watermarks of these partitions. Returns the partitions in
        the request.
        """
        request = session.request(tails)
        assert request.replica_state is not None
        sessions = leader[-1]
        call = sessions.begin(request, 17, 0.0)
        results = [
            FetchPartitionResult(
                item.wanted.partition, high_watermark=news.get(item.wanted.partition, 10)
            )
            for item in call.partitions
        ]
        code, session_id, _ = sessions.finish(call, results, 0.0)
        assert session.take_response(
            FetchResponse(error_code=call.error_code or code, session_id=session_id)
        ) == (not call.error_code)
        for key, tail in tails.items():
            if key.partition in news:
                tail.end_offset = Offset(news[key.partition])
        return [wanted.partition for topic in request.topics for wanted in topic.partitions]

    assert exchange({}) == [0, 1, 2]
    assert exchange({1: 20}) == []
    assert exchange({}) == [1]
    del tails[PartitionKey(UUID(int=1), 2)]
    assert exchange({}) == []
    assert leader[-1].partition_count == 2
    session.reset()
    assert exchange({}) == [0, 1], "as after an error"
    leader.append(FetchSessions(0, Random(1)))
    assert exchange({}) == [], "the leader no longer has the session"
    assert exchange({}) == [0, 1]
    assert exchange({}) == [0, 1], "it has no room for one"
    tails.clear()
    assert exchange({}) == []


def test_a_leader_drops_old_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redirects, "REDIRECTS_MAX", 3)
    table = redirects.RedirectTable()
    keys = [(number, KEY.topic_id, KEY.partition) for number in range(5)]
    for number, key in enumerate(keys):
        table.add(key, float(number))
    assert [table.has_returned(key, 5.0) for key in keys] == [False, False, True, True, True]
    end = 2.0 + redirects.REDIRECT_INTERVAL_S
    assert [table.has_returned(key, end) for key in keys] == [False, False, False, True, True]
    table.add(keys[2], end)
    assert table.has_returned(keys[2], end + 1.0)


# --- the leader's side ----------------------------------------------------------------------------


@pytest.fixture
async def one(harness):
    return await harness.leading("t", partitions=1)


async def requested(broker: Any, tails: dict[PartitionKey, TailPartition], **changes: Any) -> Any:
    """Return the first partition of the response to another broker's Fetch, or None without
    partitions.

    The broker sends the request to itself, because no other broker is registered.
    """
    request = TailSession(broker.me).request(tails)
    request.max_wait_ms = 0
    for name, value in changes.items():
        setattr(request, name, value)
    context = broker.context(apis.FETCH, FETCH_VERSION, request)
    reply = handle_fetch(broker, context)
    frame = await reply if isawaitable(reply) else reply
    response = broker.decode_response(apis.FETCH, FETCH_VERSION, frame)
    return response.responses[0].partitions[0] if response.responses else None


async def test_a_leader_reports_the_tail_to_its_followers(one: Any) -> None:
    for value in (b"a", b"b"):
        await one.produce("t", batch(value))
    found = one.partitions.committed("t", 0)
    tail = TailPartition(found, 0.0)
    response = await requested(one, {found.key: tail})
    assert (response.error_code, response.high_watermark, response.last_stable_offset) == (0, 2, 2)
    tail.take(2, 2, 0, decode_reported_tail(response.records))
    view = tail.view(Offset(1), found.committed_end, committed=True)
    assert view is not None
    read = await one.storage.reader.read_tail(view.ranges, Offset(1), view.end_offset, 1 << 20)
    assert [record.value for record in decode_records(read[-1])] == [b"b"]
    assert (await requested(one, {found.key: tail})).records == b"", "nothing follows"
    assert one.tail_followers.has(one.node_id)
    assert await requested(one, {}, max_bytes=LEAVES_BYTES) is None
    assert not one.tail_followers.has(one.node_id)


@pytest.mark.parametrize(("node_id", "epoch"), [(99, 1), (None, 99), (None, -1), (-1, -1)])
async def test_only_live_brokers_receive_tails(one: Any, node_id: int | None, epoch: int) -> None:
    await one.produce("t", batch(b"a"))
    found = one.partitions.committed("t", 0)
    stranger = ReplicaState(one.node_id if node_id is None else node_id, epoch)
    response = await requested(one, {found.key: TailPartition(found, 0.0)}, replica_state=stranger)
    if node_id == -1:
        assert [record.value for record in decode_records(response.records)] == [b"a"], "a consumer"
    else:
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not one.tail_followers.has(one.node_id)


async def test_a_follower_requires_cluster_action(one: Any) -> None:
    await one.produce("t", batch(b"a"))
    found = one.partitions.committed("t", 0)
    config = SecurityConfig(authorizer=STANDARD_AUTHORIZER)
    one.authorizer = Authorizer(config, AuditLog(lambda: 0.0), API_RIGHTS)
    response = await requested(one, {found.key: TailPartition(found, 0.0)})
    assert response.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not one.tail_followers.has(one.node_id)
