"""Verify transactions with their coordinator before the first batch enters a partition (KIP-890).

For producers of version 2 (Produce 12, TxnOffsetCommit 5), the leader adds the partition to the
transaction. For older producers, it only verifies that they have added the partition, unless
`transaction.partition.verification.enable` is off or the coordinator runs an older version.
"""

import asyncio
import struct
from dataclasses import dataclass
from typing import Final

from penstock.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from penstock.broker.errors import ErrorCode
from penstock.broker.partition.leaders import announced_leader
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.verification import UNVERIFIED, WITHOUT_ID, Admitted, Guard
from penstock.broker.requests.node import Node
from penstock.broker.transactions.model import Membership, ProducerIdentity
from penstock.controller.metadata.features import TRANSACTION_VERSION
from penstock.protocol.batch.header import HEADER_BYTES, TRANSACTIONAL_MASK

_ATTRIBUTES_AND_PRODUCER: Final = struct.Struct(">h20xqh")
_ATTRIBUTES_AT: Final = 21
_UNAVAILABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
    }
)


def required_guard(node: Node, transactional_id: str | None, *, adds: bool) -> Guard | None:
    """Return the guard for batches that need no verification, or None if transactions are not
    verified at all.
    """
    if not adds and not node.config.transaction_partition_verification_enable:
        return None
    return WITHOUT_ID if transactional_id is None else UNVERIFIED


def transactional_producer(records: memoryview | None) -> ProducerIdentity | None:
    """Return the producer of a transactional batch, or None for other batches and damaged ones."""
    if records is None or len(records) < HEADER_BYTES:
        return None
    attributes, producer_id, epoch = _ATTRIBUTES_AND_PRODUCER.unpack_from(records, _ATTRIBUTES_AT)
    if not attributes & TRANSACTIONAL_MASK or producer_id < 0:
        return None
    return ProducerIdentity(producer_id, epoch)


def needs_verification(
    node: Node,
    transactional_id: str,
    partition: Partition,
    producer: ProducerIdentity,
    *,
    adds: bool,
) -> bool:
    """Return True if the coordinator must verify the producer before a batch is appended.

    Later batches of a transaction need no verification. Neither do batches with a fenced epoch,
    because the partition rejects them.
    """
    log, producer_id, epoch = partition.log, producer.producer_id, producer.producer_epoch
    if log.producers.is_in_transaction(producer_id, epoch):
        return False
    if log.producers.is_fenced(producer_id, epoch):
        return False
    return adds or (
        node.config.transaction_partition_verification_enable
        and _supports_verification(node, transactional_id)
    )


def send_request(
    node: Node,
    transactional_id: str,
    partition: Partition,
    producer: ProducerIdentity,
    admitted: Admitted,
    *,
    adds: bool,
) -> None:
    """Send a request to the coordinator, or wait for the response to a pending one. `admitted` may
    be called before this returns. Waiting batches of a producer keep their order.
    """
    verifications = partition.log.verifications
    guard = verifications.find(producer.producer_id, producer.producer_epoch)
    is_new = guard is None or (adds and not guard.adds)
    if guard is None or is_new:
        guard = verifications.begin(producer.producer_id, producer.producer_epoch, adds=adds)
    own = guard
    if own.is_verified:
        admitted(own)
        return
    own.waiting.append(admitted)
    if is_new:
        _Question(node, transactional_id, partition, producer, own).send_request()


@dataclass(frozen=True, slots=True)
class _Question:
    """A pending verification of one guard. This is a class because closures that call each other
    would leave a reference cycle for each transaction.
    """

    node: Node
    transactional_id: str
    partition: Partition
    producer: ProducerIdentity
    guard: Guard

    def send_request(self) -> None:
        self.node.verifier.send_request(
            Membership(self.transactional_id, self.producer, adds=self.guard.adds),
            (self.partition.topic_name, self.partition.index),
            self._resolve,
        )

    def _resolve(self, code: ErrorCode) -> None:
        verifications = self.partition.log.verifications
        if code is ErrorCode.NONE and verifications.must_verify_again(self.guard):
            self.send_request()
        elif self.guard.waiting:
            verifications.resolve(self.guard, code)


async def verify(
    node: Node,
    transactional_id: str,
    partition: Partition,
    producer: ProducerIdentity,
    *,
    adds: bool,
) -> Guard | ErrorCode:
    """Return the guard or the coordinator's error. The caller must release the guard after it has
    appended.
    """
    done: asyncio.Future[Guard | ErrorCode] = asyncio.get_running_loop().create_future()

    def admitted(found: Guard | ErrorCode) -> None:
        if done.done():
            return
        if isinstance(found, Guard):
            found.holders_count += 1
        done.set_result(found)

    send_request(node, transactional_id, partition, producer, admitted, adds=adds)
    try:
        return await done
    except asyncio.CancelledError:
        if done.done() and not done.cancelled() and isinstance(held := done.result(), Guard):
            partition.log.verifications.release(held)
        raise


def refusal_of_produce(code: ErrorCode, version: int) -> tuple[ErrorCode, str | None]:
    """Convert a coordinator's error to a code that the producer's request version supports and
    handles correctly.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH, None
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _KNOWS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction"
    if code in _UNAVAILABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS):
        return (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. Underlying error:"
            f" {code.name}",
        )
    return code, None


def refusal_of_commit(code: ErrorCode, version: int) -> ErrorCode:
    """Like `refusal_of_produce`, but for a TxnOffsetCommit client."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _COMMIT_KNOWS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    is_concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _COMMIT_ADDS
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_concurrent or code in _UNAVAILABLE else code


_ADDS: Final = 12
_KNOWS_ABORTABLE: Final = 11
_COMMIT_ADDS: Final = 5
_COMMIT_KNOWS_ABORTABLE: Final = 4


def produce_adds(version: int) -> bool:
    return version >= _ADDS


def commit_adds(version: int) -> bool:
    return version >= _COMMIT_ADDS


def _supports_verification(node: Node, transactional_id: str) -> bool:
    """Return False if the coordinator is known to run an older version, during a rolling
    upgrade.
    """
    index = node.transactions.partition_of(transactional_id)
    topic = node.image.topics.by_name(TRANSACTIONS_TOPIC)
    if index is None or topic is None:
        return True
    leader = announced_leader(node.image, topic.partitions[index], node.gone)
    state = None if leader is None else node.image.nodes.get(leader.node_id)
    return state is None or any(item.name == TRANSACTION_VERSION for item in state.features)
