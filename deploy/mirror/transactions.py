"""A transactional producer, because confluent-kafka cannot send batches unchanged.

Invariant: everything between `begin` and `commit` becomes visible atomically, or not at all. A
newer producer with the same id fences this one: then `Ended` is raised, and nothing more is sent.
Source: KIP-98; Kafka `TransactionManager`.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from penstock.base.buffers import Buffer
from penstock.deploy.mirror.batches import in_transaction
from penstock.deploy.mirror.cluster import Cluster, produce_request
from penstock.deploy.mirror.state import Ended
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.client.brokers import TRANSACTION, Partition, by_topic
from penstock.protocol.client.errors import KafkaFailed, Moved
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import add_partitions_to_txn, end_txn, init_producer_id, produce

TIMEOUT_MS: Final = 60_000
"""How long a transaction may take before its coordinator aborts it."""
_WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.05
_SEQUENCES: Final = 1 << 31
_T = TypeVar("_T")
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class TransactionalProducer:
    """Appends batches in transactions. Each request contains one batch per partition."""

    def __init__(self, target: Cluster, transactional_id: str) -> None:
        self._target = target
        self._id = transactional_id
        self._producer_id = self._epoch = -1
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()

    def start(self) -> None:
        """Request the next epoch, which fences earlier producers and aborts their transactions."""
        response = self._repeated(
            apis.INIT_PRODUCER_ID,
            init_producer_id.InitProducerIdRequest(self._id, TIMEOUT_MS),
            init_producer_id.InitProducerIdResponse,
            lambda response: response.error_code,
            f"no producer id for {self._id}",
        )
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._sequences, self._added = {}, set()

    def add(self, partitions: Iterable[Partition]) -> None:
        """Begin the transaction in these partitions."""
        missing = sorted(set(partitions) - self._added)
        if not missing:
            return
        topics = [
            add_partitions_to_txn.AddPartitionsToTxnTopic(topic, indexes)
            for topic, indexes in by_topic(missing).items()
        ]
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=topics,
        )

        def first_code(response: add_partitions_to_txn.AddPartitionsToTxnResponse) -> int:
            codes = {
                part.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            }
            return next(iter(sorted(codes - {0, ErrorCode.OPERATION_NOT_ATTEMPTED})), 0)

        self._repeated(
            apis.ADD_PARTITIONS_TO_TXN,
            request,
            add_partitions_to_txn.AddPartitionsToTxnResponse,
            first_code,
            f"partitions cannot be added to the transaction of {self._id}",
        )
        self._added |= set(missing)

    def append(self, batches: Mapping[Partition, tuple[Buffer, int]]) -> dict[Partition, int]:
        """Append a batch to each partition, and return their base offsets.

        batches: each batch with its number of records.
        """
        found: dict[Partition, int] = {}
        for leader, led in self._target.by_leader(batches).items():
            data = {
                key: in_transaction(
                    batches[key][0], self._producer_id, self._epoch, self._sequences.get(key, 0)
                )
                for key in led
            }
            response = self._target.send_request(
                apis.PRODUCE,
                produce_request(data, TIMEOUT_MS // 2, transactional_id=self._id),
                produce.ProduceResponse,
                node=leader,
            )
            for topic in response.responses:
                for part in topic.partition_responses:
                    key = topic.name, part.index
                    what = f"{key[0]}-{key[1]} cannot be appended to at the target"
                    self._check(part.error_code, part.error_message, what)
                    count = batches[key][1]
                    self._sequences[key] = (self._sequences.get(key, 0) + count) % _SEQUENCES
                    found[key] = part.base_offset
        return found

    def commit(self) -> None:
        """End the transaction; its records become visible by the time this returns, or shortly
        after.
        """
        self._repeated(
            apis.END_TXN,
            end_txn.EndTxnRequest(self._id, self._producer_id, self._epoch, True),
            end_txn.EndTxnResponse,
            lambda response: response.error_code,
            f"the transaction of {self._id} cannot be committed",
        )
        self._added = set()

    def _repeated(
        self,
        api: ApiSpec,
        request: object,
        kind: type[_T],
        code_of: Callable[[_T], int],
        failed: str,
    ) -> _T:
        """Send a request to the coordinator. Retry while it moves, loads its state, or ends the
        previous transaction. code_of: returns the error code of a response.
        """
        ends_at = time.monotonic() + _WAIT_S
        while True:
            try:
                node = self._target.coordinator(TRANSACTION, self._id)
                response = self._target.send_request(api, request, kind, node=node)
                code = code_of(response)
                if known_code(code) is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    self._check(code, None, failed)
                    return response
                if time.monotonic() >= ends_at:
                    raise KafkaFailed(f"{failed}: the last transaction is still ending")
            except Moved:
                if time.monotonic() >= ends_at:
                    raise
            time.sleep(_PAUSE_S)

    def _check(self, code: int, message: str | None, failed: str) -> None:
        if code in _FENCED:
            raise Ended(
                f"another mirror or `penstock mirror finish` with the name {self._id!r} has started"
            )
        self._target.check(code, message, failed)
