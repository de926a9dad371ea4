"""Records of `__transaction_state`, and the coordinator over an in-memory log: the next coordinator
completes decided transactions.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import NodeId
from penstock.broker.coordination import shards
from penstock.broker.coordination.connection_order import LateRequest
from penstock.broker.coordination.log import LogBatch
from penstock.broker.coordination.shards import partition_for
from penstock.broker.handlers.transactions import handle_list_transactions
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.markers import MarkerSender, Target
from penstock.broker.transactions.model import (
    Membership,
    ProducerIdentity,
    TopicPartition,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
)
from penstock.broker.transactions.records import (
    MalformedTransactionRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import list_transactions as wire_list
from tests.support.coordinator_log import MemoryLog
from tests.support.partition_harness import PartitionHarness
from tests.support.waiting import PATIENCE_S, until

LIMITS = TransactionLimits(transactions_max=2)
T0, T1, GONE = ("t", 0), ("t", 1), ("gone", 0)


class Leaders:
    """The partition leaders: record the markers and respond as the test configures."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, int, bool, int]] = []
        """(partition, producer epoch, committed, coordinator epoch)"""
        self.serials: list[int] = []
        self.versions: set[int] = set()
        self.responses: dict[TopicPartition, list[ErrorCode]] = {}
        self.leaders: dict[TopicPartition, NodeId | None] = {T0: NodeId(0), T1: NodeId(1)}
        self.broken_count = 0
        self.stalled = asyncio.Event()
        self.stalled.set()

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        return self.leaders[partition]

    async def write(self, node_id: NodeId, targets: Sequence[Target]) -> Mapping[Target, int]:
        await self.stalled.wait()
        if self.broken_count:
            self.broken_count -= 1
            raise ConnectionResetError
        for target in targets:
            assert self.leaders[target.partition] == node_id
            marker = target.marker
            self.versions.add(target.version)
            self.written.append(
                (
                    target.partition,
                    marker.producer_epoch,
                    marker.committed,
                    marker.coordinator_epoch,
                )
            )
            self.serials.append(marker.serial)
        return {target: self._response(target.partition) for target in targets}

    def _response(self, partition: TopicPartition) -> ErrorCode:
        responses = self.responses.get(partition)
        return responses.pop(0) if responses else ErrorCode.NONE


class CoordinatorHarness:
    def __init__(self) -> None:
        self.log = MemoryLog(2)
        self.leaders = Leaders()
        self.now_ms = 1_000_000
        self.next_producer_id = 0
        self.coordinator = self.start()

    def start(self) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(
            self.log,
            MarkerSender(self.leaders.leader_of, self.leaders.write),
            LIMITS,
            now_ms=lambda: self.now_ms,
            allocate_producer_id=self._allocate,
            tick_interval_ms=3_600_000,
            record_version=lambda: 1,
        )
        for partition in range(self.log.partition_count):
            coordinator.partition_opened(partition)
        return coordinator

    def restart(self) -> None:
        """Kill the coordinator's broker; another one opens the partitions with a higher epoch."""
        self.coordinator.close()
        self.log.held = []
        self.log.epoch += 1
        self.coordinator = self.start()

    async def _allocate(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    async def begun(
        self, *partitions: TopicPartition, timeout_ms: int = 60_000
    ) -> ProducerIdentity:
        code, producer = await self.coordinator.init_producer_id("tid", timeout_ms, None)
        assert code is ErrorCode.NONE
        assert await self.add(producer, partitions) is ErrorCode.NONE
        return producer

    async def add(self, producer, partitions, *, connection_id=1) -> ErrorCode:
        return await self.coordinator.add_partitions(
            "tid", producer, partitions, connection_id=connection_id
        )

    async def end(self, producer, *, committed=True, connection_id=1) -> ErrorCode:
        return await self.coordinator.end(
            "tid", producer, committed=committed, connection_id=connection_id
        )

    async def until_state(self, state: TransactionState) -> TransactionMetadata:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.coordinator.describe("tid")
                if isinstance(found, TransactionMetadata) and found.state is state:
                    return found
                await asyncio.sleep(0.001)


@pytest.fixture
async def harness():
    started = CoordinatorHarness()
    yield started
    started.coordinator.close()


async def test_a_commit_is_acknowledged_when_it_is_decided_and_markers_are_sent(harness):
    producer = await harness.begun(T0, T1)
    task = await harness.log.holding(harness.end(producer))
    assert not task.done()
    assert harness.leaders.written == [], "no response precedes durability"
    harness.log.hold = False
    harness.log.release()
    assert await task is ErrorCode.NONE
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    assert sorted(harness.leaders.written) == [(T0, 0, True, 1), (T1, 0, True, 1)]
    assert await harness.end(producer) is ErrorCode.NONE
    assert await harness.end(producer, committed=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("committed", [False, True])
async def test_the_next_coordinator_completes_decided_transactions(harness, committed):
    producer = await harness.begun(T0, T1)
    harness.leaders.stalled.clear()
    assert await harness.end(producer, committed=committed) is ErrorCode.NONE
    harness.restart()
    harness.leaders.stalled.set()
    await harness.until_state(
        TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    )
    assert sorted(harness.leaders.written) == [(T0, 0, committed, 2), (T1, 0, committed, 2)]


async def test_a_coordinator_that_lost_its_lease_confirms_nothing(harness):
    """The coordinator was paused, so the commit in its memory may belong to the previous
    transaction.
    """
    producer = await harness.begun(T0)
    assert await harness.end(producer) is ErrorCode.NONE
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    harness.log.can_write = False
    assert await harness.end(producer) is ErrorCode.NOT_COORDINATOR
    assert await harness.add(producer, [T0]) is ErrorCode.NOT_COORDINATOR
    harness.log.can_write = True
    assert await harness.end(producer) is ErrorCode.NONE


async def test_a_coordinator_that_may_have_been_replaced_returns_only_what_it_appends(harness):
    """A firewall rejects its connections: the next coordinator may already have the producer's next
    transaction.
    """
    producer = await harness.begun(T0)
    assert await harness.end(producer) is ErrorCode.NONE
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    harness.log.leads_alone = False
    assert await harness.end(producer) is ErrorCode.NOT_COORDINATOR
    assert (
        await harness.coordinator.end("unknown", producer, committed=True, connection_id=1)
        is ErrorCode.NOT_COORDINATOR
    )
    assert await harness.coordinator.describe("tid") is ErrorCode.NOT_COORDINATOR
    assert await harness.add(producer, [T0]) is ErrorCode.NONE, "the WAL's fence protects it"


async def test_changes_that_could_not_be_written_are_rolled_back(harness):
    producer = await harness.begun(T0)
    task = await harness.log.holding(harness.end(producer))
    harness.restart()
    task.cancel()
    harness.log.hold = False
    found = await harness.until_state(TransactionState.ONGOING)
    assert found.partitions == frozenset({T0})
    assert await harness.end(producer, committed=False) is ErrorCode.NONE
    await harness.until_state(TransactionState.COMPLETE_ABORT)
    assert harness.leaders.written == [(T0, 0, False, 2)]


async def test_markers_are_retried_and_deleted_partitions_need_none(harness):
    producer = await harness.begun(T0, T1, GONE)
    harness.leaders.broken_count = 2
    harness.leaders.responses = {
        T0: [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT],
        T1: [ErrorCode.INVALID_PRODUCER_EPOCH],
    }
    harness.leaders.leaders[T1] = None
    assert await harness.end(producer) is ErrorCode.NONE
    await until(lambda: not harness.leaders.responses[T0])
    harness.leaders.leaders[T1] = NodeId(0)
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    assert [partition for partition, *_ in harness.leaders.written].count(T0) == 3


async def test_a_fenced_coordinator_leaves_remaining_markers_to_the_next_one(harness):
    producer = await harness.begun(T0, T1)
    harness.leaders.responses = {
        T0: [ErrorCode.TRANSACTION_COORDINATOR_FENCED],
        T1: [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3,
    }
    assert await harness.end(producer) is ErrorCode.NONE
    await until(lambda: not harness.leaders.responses[T0])
    found = await harness.coordinator.describe("tid")
    assert isinstance(found, TransactionMetadata)
    assert found.state is TransactionState.PREPARE_COMMIT
    harness.restart()
    await harness.until_state(TransactionState.COMPLETE_COMMIT)


async def test_serials_increase_with_each_transaction_whatever_the_clock_does(harness):
    producer = await harness.begun(T0)
    for number in range(4):
        assert await harness.add(producer, [T0]) is ErrorCode.NONE
        assert await harness.end(producer, committed=number % 2 == 0) is ErrorCode.NONE
        await harness.until_state(
            TransactionState.COMPLETE_ABORT if number % 2 else TransactionState.COMPLETE_COMMIT
        )
        harness.now_ms -= 3_600_000
        if number == 1:
            harness.restart()
    assert harness.leaders.serials == sorted(set(harness.leaders.serials))
    assert min(harness.leaders.serials) >= 0


async def test_copies_of_a_marker_have_the_same_serial(harness):
    producer = await harness.begun(T0)
    harness.leaders.broken_count = 1
    harness.leaders.responses[T0] = [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    assert await harness.end(producer) is ErrorCode.NONE
    await until(lambda: len(harness.leaders.serials) >= 2)
    first = set(harness.leaders.serials)
    assert len(first) == 1
    harness.leaders.responses[T0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    harness.restart()
    harness.leaders.responses[T0] = []
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    assert harness.leaders.serials[-1] > first.pop()


async def test_a_late_end_txn_does_not_decide_the_next_transaction(harness):
    producer = await harness.begun(T0)
    assert await harness.end(producer) is ErrorCode.NONE
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    assert await harness.add(producer, [T0], connection_id=2) is ErrorCode.NONE
    for request in (
        harness.end(producer),
        harness.add(producer, [T1]),
    ):
        with pytest.raises(LateRequest):
            await request
    assert (await harness.until_state(TransactionState.ONGOING)).partitions == {T0}
    assert await harness.end(producer, committed=False, connection_id=3) is ErrorCode.NONE
    await harness.until_state(TransactionState.COMPLETE_ABORT)


async def test_a_late_end_txn_stays_late_after_waiting_for_the_previous_transaction(harness):
    producer = await harness.begun(T0)
    task = await harness.log.holding(harness.add(producer, [T1]))
    late = asyncio.create_task(harness.end(producer))
    await asyncio.sleep(0)
    again = asyncio.create_task(harness.add(producer, [T1], connection_id=2))
    await asyncio.sleep(0)
    harness.log.hold = False
    harness.log.release()
    assert await task is ErrorCode.NONE
    assert await again is ErrorCode.NONE
    with pytest.raises(LateRequest):
        await late


async def test_a_new_producer_waits_for_the_abort_of_the_old_one(harness):
    old = await harness.begun(T0)
    code, new = await harness.coordinator.init_producer_id("tid", 60_000, None)
    assert (code, new) == (ErrorCode.NONE, ProducerIdentity(old.producer_id, 2)), (
        "not CONCURRENT_TRANSACTIONS, for it is soon over"
    )
    assert harness.leaders.written == [(T0, 1, False, 1)]
    assert await harness.end(old) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("off_ms", [3_600_000, -3_600_000])
async def test_timeouts_do_not_depend_on_the_clock_of_the_next_coordinator(harness, off_ms):
    """An open transaction gets its full timeout from the moment at which the coordinator has loaded
    it.
    """
    await harness.begun(T0, timeout_ms=5_000)
    harness.now_ms += 4_000 + off_ms
    harness.restart()
    await harness.until_state(TransactionState.ONGOING)
    harness.now_ms += 5_000
    harness.coordinator.tick()
    assert harness.log.held == [], "nothing is on its way to the log"
    harness.now_ms += 1
    harness.coordinator.tick()
    await harness.until_state(TransactionState.COMPLETE_ABORT)


async def test_the_next_coordinator_also_aborts_on_timeout(harness):
    producer = await harness.begun(T0, timeout_ms=5_000)
    harness.coordinator.tick()
    harness.restart()
    await harness.until_state(TransactionState.ONGOING)
    harness.now_ms += 5_001
    harness.coordinator.tick()
    found = await harness.until_state(TransactionState.COMPLETE_ABORT)
    assert found.producer_epoch == producer.producer_epoch + 1
    assert await harness.end(producer) is ErrorCode.PRODUCER_FENCED
    harness.now_ms += LIMITS.id_expiration_ms + 1
    harness.coordinator.tick()
    await until(lambda: not harness.coordinator.listed())
    harness.restart()
    assert await harness.coordinator.describe("tid") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_a_coordinator_that_is_loading_does_not_list_only_some_transactions(
    harness, monkeypatch
):
    """Administrators would consider the transactions that are not listed hanging."""
    monkeypatch.setattr(shards, "LOAD_WAIT_S", 0.01)
    cluster = PartitionHarness()
    await harness.begun(T0)
    broker = await cluster.broker(1)
    read, may_read = harness.log.read, asyncio.Event()

    async def read_later(partition: int) -> AsyncIterator[LogBatch]:
        await may_read.wait()
        async for batch in read(partition):
            yield batch

    monkeypatch.setattr(harness.log, "read", read_later)
    harness.restart()
    broker.transactions = harness.coordinator
    context = broker.context(api := apis.LIST_TRANSACTIONS, 1, wire_list.ListTransactionsRequest())

    async def listed() -> tuple[int, list[str]]:
        response = broker.decode_response(api, 1, await handle_list_transactions(broker, context))
        return response.error_code, [item.transactional_id for item in response.transaction_states]

    assert await listed() == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
    may_read.set()
    await harness.until_state(TransactionState.ONGOING)
    assert await listed() == (ErrorCode.NONE, ["tid"])

    unknown = wire_list.ListTransactionsRequest(state_filters=["Ongoing", "x", "x"])
    response = await handle_list_transactions(broker, broker.context(api, 1, unknown))
    assert broker.decode_response(api, 1, response).unknown_state_filters == ["x"]
    await broker.close()


# --- version 2 ------------------------------------------------------------------------------------


def membership(producer: ProducerIdentity, *, adds: bool = True) -> Membership:
    return Membership("tid", producer, adds=adds)


async def started(harness: CoordinatorHarness) -> ProducerIdentity:
    code, producer = await harness.coordinator.init_producer_id("tid", 60_000, None)
    assert code is ErrorCode.NONE
    return producer


async def end_epoch(
    harness: CoordinatorHarness, producer: ProducerIdentity, *, committed: bool = True
) -> tuple[ErrorCode, ProducerIdentity]:
    return await harness.coordinator.end_epoch("tid", producer, committed=committed)


async def test_partition_leaders_add_partitions_and_end_txn_returns_the_next_epoch(harness):
    first = await started(harness)
    response = harness.coordinator.respond_to_leader
    assert await response(membership(first), [T0, T1]) == dict.fromkeys([T0, T1], ErrorCode.NONE)
    assert await response(membership(first, adds=False), [T0, ("t", 7)]) == {
        T0: ErrorCode.NONE,
        ("t", 7): ErrorCode.TRANSACTION_ABORTABLE,
    }
    second = ProducerIdentity(first.producer_id, 1)
    assert await end_epoch(harness, first) == (ErrorCode.NONE, second)
    assert await end_epoch(harness, first) == (ErrorCode.NONE, second), "a repeated request"
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    assert sorted(harness.leaders.written) == [(T0, 1, True, 1), (T1, 1, True, 1)]
    assert harness.leaders.versions == {2}
    for adds in (True, False):
        assert await response(membership(first, adds=adds), [T0]) == {T0: ErrorCode.PRODUCER_FENCED}
    assert (await end_epoch(harness, first, committed=False))[0] is ErrorCode.INVALID_TXN_STATE


async def test_requests_of_partition_leaders_do_not_wait_for_the_previous_transaction(harness):
    first = await started(harness)
    await harness.coordinator.respond_to_leader(membership(first), [T0])
    harness.leaders.stalled.clear()
    code, second = await end_epoch(harness, first)
    assert code is ErrorCode.NONE
    concurrent = {T0: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert await harness.coordinator.respond_to_leader(membership(second), [T0]) == concurrent
    harness.leaders.stalled.set()
    await harness.until_state(TransactionState.COMPLETE_COMMIT)
    added = await harness.coordinator.respond_to_leader(membership(second), [T0])
    assert added == {T0: ErrorCode.NONE}


async def test_the_next_coordinator_recognizes_a_repeated_end_txn(harness):
    first = await started(harness)
    await harness.coordinator.respond_to_leader(membership(first), [T0])
    harness.leaders.stalled.clear()
    assert (await end_epoch(harness, first))[0] is ErrorCode.NONE
    harness.restart()
    harness.leaders.stalled.set()
    second = ProducerIdentity(first.producer_id, 1)
    assert await end_epoch(harness, first) == (ErrorCode.NONE, second)
    assert harness.leaders.written == [(T0, 1, True, 2)]
    assert (await end_epoch(harness, second))[0] is ErrorCode.INVALID_TXN_STATE


async def test_an_end_txn_that_could_not_be_written_has_no_effect(harness):
    first = await started(harness)
    await harness.coordinator.respond_to_leader(membership(first), [T0])
    task = await harness.log.holding(end_epoch(harness, first))
    assert harness.leaders.written == []
    harness.restart()
    task.cancel()
    harness.log.hold = False
    assert (await harness.until_state(TransactionState.ONGOING)).producer == first
    assert await end_epoch(harness, first, committed=False) == (
        ErrorCode.NONE,
        ProducerIdentity(first.producer_id, 1),
    )


async def test_invalid_requests_and_requests_above_the_limits_are_rejected(harness):
    init = harness.coordinator.init_producer_id
    assert (await init("", 1_000, None))[0] is ErrorCode.INVALID_REQUEST
    assert (await init("tid", 0, None))[0] is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (await init("tid", LIMITS.timeout_max_ms + 1, None))[
        0
    ] is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert await harness.end(ProducerIdentity(1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    same_partition = [name for name in map(str, range(20)) if partition_for(name, 2) == 0][:3]
    codes = [(await init(name, 1_000, None))[0] for name in same_partition]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    harness.log.foreign.update({0, 1})
    harness.coordinator.partition_closed(0)
    assert (await init(same_partition[0], 1_000, None))[0] is ErrorCode.NOT_COORDINATOR


metadata = st.builds(
    TransactionMetadata,
    st.text(max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(1, 2**31 - 1),
    st.sampled_from([state for state in TransactionState if state is not TransactionState.DEAD]),
    st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 100)), max_size=5),
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
)
flexible = st.builds(
    replace,
    metadata,
    last_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_version=st.integers(0, 2),
)


@given(metadata)
def test_records_survive_a_round_trip(original: TransactionMetadata) -> None:
    assert decode_key(encode_key(original.transactional_id)) == original.transactional_id
    assert decode_value(original.transactional_id, encode_value(original)) == original


@given(flexible)
def test_flexible_records_survive_a_round_trip(original: TransactionMetadata) -> None:
    assert decode_value(original.transactional_id, encode_value(original, 1)) == original


@given(flexible)
def test_the_next_producer_id_is_never_lost(original: TransactionMetadata) -> None:
    """The feature level may be downgraded while the transaction ends."""
    found = decode_value(original.transactional_id, encode_value(original, 0))
    assert found.next_producer_id == original.next_producer_id


def test_flexible_records_match_kafka() -> None:
    """Built by hand from Kafka's TransactionLogValue.json, version 1. The decoder skips tags of
    later versions.
    """
    prepared = TransactionMetadata(
        "a", 7, 1, 60_000, TransactionState.PREPARE_COMMIT, frozenset({("t", 2)}), 5, 9, -1, 7, 8, 2
    )
    expected = (
        "0001"
        "0000000000000007"
        "0001"
        "0000ea60"
        "02"
        "02" "0274" "02" "00000002" "00"
        "0000000000000009"
        "0000000000000005"
        "03" "0008" "0000000000000007" "0108" "0000000000000008" "0202" "0002"
    )  # fmt: skip
    assert encode_value(prepared, 1).hex() == expected
    later = expected.replace("030008", "040008") + "03020005"
    assert decode_value("a", bytes.fromhex(later)) == prepared


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_only_the_documented_error(data: bytes) -> None:
    for decode in (decode_key, lambda value: decode_value("tid", value)):
        try:
            decode(data)
        except MalformedTransactionRecord:
            continue


def test_records_match_kafka() -> None:
    """Built by hand from Kafka's TransactionLogKey.json and TransactionLogValue.json, version 0."""
    ongoing = TransactionMetadata(
        "a", 7, 1, 60_000, TransactionState.ONGOING, frozenset({("t", 2), ("t", 0)}), 5, 9
    )
    assert encode_key("a").hex() == "0000000161"
    assert encode_value(ongoing).hex() == (
        "0000"
        "0000000000000007"
        "0001"
        "0000ea60"
        "01"
        "00000001"
        "0001"
        "74"
        "00000002"
        "00000000"
        "00000002"
        "0000000000000009"
        "0000000000000005"
    )
    empty = TransactionMetadata("a", 7, 1, 60_000, TransactionState.EMPTY, frozenset(), -1, 9)
    assert (
        encode_value(empty).hex()
        == "0000000000000000000700010000ea6000ffffffff0000000000000009" + "ff" * 8
    )
