"""Verification requests to transaction coordinators: batching, and one result per partition."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from penstock.base.ids import NodeId
from penstock.broker.partition.local_broker import LocalBroker
from penstock.broker.transactions import verifier as module
from penstock.broker.transactions.model import Membership, ProducerIdentity, TopicPartition
from penstock.broker.transactions.peers import CoordinatorPeers
from penstock.broker.transactions.verifier import TransactionVerifier
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen.add_partitions_to_txn import AddPartitionsToTxnResponse
from tests.support.waiting import until

T0, T1 = ("t", 0), ("t", 1)
Wanted = Mapping[Membership, Sequence[TopicPartition]]


class Coordinators:
    """Brokers that respond as the test configures; the last response is repeated."""

    def __init__(self) -> None:
        self.node: NodeId | None = NodeId(1)
        self.requests: list[tuple[NodeId, dict[Membership, list[TopicPartition]]]] = []
        self.codes: list[ErrorCode | Exception] = [ErrorCode.NONE]
        self.gate = asyncio.Event()
        self.gate.set()
        self.verifier = TransactionVerifier(lambda _: self.node, self.respond)
        self.results: list[tuple[str, TopicPartition, ErrorCode]] = []

    async def respond(
        self, node_id: NodeId, requested: Wanted
    ) -> Mapping[tuple[str, TopicPartition], ErrorCode]:
        self.requests.append((node_id, {item: list(found) for item, found in requested.items()}))
        await self.gate.wait()
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if isinstance(code, Exception):
            raise code
        return {
            (item.transactional_id, partition): code
            for item, found in requested.items()
            for partition in found
        }

    def send_request(
        self, name: str, partition: TopicPartition, *, epoch: int = 0, adds: bool = True
    ) -> None:
        item = Membership(name, ProducerIdentity(7, epoch), adds)
        self.verifier.send_request(
            item, partition, lambda code: self.results.append((name, partition, code))
        )


async def test_simultaneous_verifications_share_a_request() -> None:
    peers = Coordinators()
    for number in range(3):
        peers.send_request(f"a{number}", T0)
        peers.send_request(f"a{number}", T1)
    await until(lambda: len(peers.results) == 6)
    ((node_id, requested),) = peers.requests
    assert node_id == 1
    assert [item.transactional_id for item in requested] == ["a0", "a1", "a2"]
    assert set(map(tuple, requested.values())) == {(T0, T1)}


async def test_verifications_wait_for_the_response_of_their_coordinator() -> None:
    """There is one request at a time; the next one contains all queued verifications."""
    peers = Coordinators()
    peers.gate.clear()
    peers.send_request("a", T0)
    await until(lambda: len(peers.requests) == 1)
    for name in ("b", "c", "d"):
        peers.send_request(name, T0)
    peers.gate.set()
    await until(lambda: len(peers.results) == 4)
    assert len(peers.requests) == 2


async def test_a_request_contains_each_transactional_id_with_one_epoch() -> None:
    """Responses contain only the ids, not the epochs."""
    peers = Coordinators()
    peers.send_request("a", T0, epoch=1)
    peers.send_request("a", T0, epoch=2)
    peers.send_request("a", T1, epoch=1)
    await until(lambda: len(peers.results) == 3)
    assert [
        [(item.producer.producer_epoch, found) for item, found in requested.items()]
        for _, requested in peers.requests
    ] == [[(1, [T0, T1])], [(2, [T0])]]


@pytest.mark.parametrize(
    "problem",
    [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ConnectionResetError(),
        ValueError("not foreseen"),
    ],
    ids=repr,
)
async def test_a_verification_is_retried_after_a_retriable_error(
    problem: ErrorCode | Exception,
) -> None:
    peers = Coordinators()
    peers.codes = [problem, problem, ErrorCode.NONE]
    peers.send_request("a", T0)
    await until(lambda: bool(peers.results))
    assert peers.results == [("a", T0, ErrorCode.NONE)]
    assert len(peers.requests) == 3


async def test_an_error_that_is_not_retriable_is_final() -> None:
    peers = Coordinators()
    peers.codes = [ErrorCode.PRODUCER_FENCED, ErrorCode.NONE]
    peers.send_request("a", T0)
    await until(lambda: bool(peers.results))
    assert peers.results == [("a", T0, ErrorCode.PRODUCER_FENCED)]


@pytest.mark.parametrize("has_coordinator", [False, True])
async def test_every_verification_completes_in_time(
    has_coordinator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESPONSE_MAX_S", 0.1)
    peers = Coordinators()
    peers.node = NodeId(1) if has_coordinator else None
    peers.codes = [ErrorCode.CONCURRENT_TRANSACTIONS]
    peers.send_request("a", T0)
    await until(lambda: bool(peers.results))
    expected = (
        ErrorCode.CONCURRENT_TRANSACTIONS
        if has_coordinator
        else ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert peers.results == [("a", T0, expected)]


async def test_requests_to_a_silent_coordinator_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESPONSE_MAX_S", 0.1)
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.05)
    peers = Coordinators()
    peers.gate.clear()
    peers.send_request("a", T0)
    await until(lambda: bool(peers.results))
    assert peers.results == [("a", T0, ErrorCode.NETWORK_EXCEPTION)]


async def test_verifications_are_sent_to_the_next_coordinator() -> None:
    peers = Coordinators()
    peers.codes = [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE]
    peers.gate.clear()
    peers.send_request("a", T0)
    await until(lambda: len(peers.requests) == 1)
    peers.node = NodeId(2)
    peers.gate.set()
    await until(lambda: bool(peers.results))
    assert [node_id for node_id, _ in peers.requests] == [1, 2]


async def test_no_requests_are_sent_after_close() -> None:
    peers = Coordinators()
    peers.codes = [ErrorCode.CONCURRENT_TRANSACTIONS]
    peers.send_request("a", T0)
    await until(lambda: len(peers.requests) == 1)
    peers.verifier.close()
    count = len(peers.requests)
    await asyncio.sleep(3 * module.RETRY_S)
    assert len(peers.requests) == count


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
        (30_000, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_an_error_of_the_whole_request_applies_to_each_partition(
    code: int, expected: ErrorCode
) -> None:
    class Rejecting:
        node_id = NodeId(1)

        def connect_peers(self) -> "Rejecting":
            return self

        async def send_request(self, *_: object) -> AddPartitionsToTxnResponse:
            return AddPartitionsToTxnResponse(error_code=code)

    async def respond_locally(*_: object) -> Mapping[TopicPartition, ErrorCode]:
        raise AssertionError("another broker coordinates the transaction")

    peers = CoordinatorPeers(cast("LocalBroker", Rejecting()), respond_locally)
    requested = {
        Membership("a", ProducerIdentity(7, 0), adds=True): [T0, T1],
        Membership("b", ProducerIdentity(8, 0), adds=False): [T0],
    }
    found = await peers.send_request(NodeId(2), requested)
    assert found == {("a", T0): expected, ("a", T1): expected, ("b", T0): expected}
