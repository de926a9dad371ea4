"""A transactional producer of version 2 (KIP-890), which librdkafka does not support.

Like Java's producer, it adds partitions to a transaction with their first batch, and each end of a
transaction returns the next epoch, in which sequence numbers start at 0. Requests without a
response are retried unchanged. Each transaction is recorded once: ok, fail or info.
"""

import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from math import inf
from random import Random
from typing import Any, Final

from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Record as BatchRecord
from penstock.protocol.batch.records import encode_batch
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import end_txn, find_coordinator, init_producer_id, metadata, produce
from tests.chaos.clients import Client
from tests.chaos.record import Record as ChaosRecord
from tests.support.anomalies import UNKNOWN, Outcome, Record, Write
from tests.support.history import Part

_PRODUCE: Final = replace(apis.PRODUCE, max=12)
"""The last version with topic names. Newer ones contain topic ids, which change when a topic is
recreated.
"""
_TIMEOUT_S: Final = 5.0
_HURRY_S: Final = 0.001
"""Response timeout of a batch whose response is not awaited."""
_PAUSE_S: Final = 0.05
_TRANSACTION_TIMEOUT_MS: Final = 120_000
_ABORTED_SHARE: Final = 0.4
_LATE_SHARE: Final = 0.5
"""Share of aborted transactions that have a batch in flight at their end."""
_KEY_OF_TRANSACTION: Final = 1
_FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""The epoch was ended by a late copy of the client's own InitProducerId, or by the transaction
timeout.
"""


class Fenced(Exception):
    """The coordinator has ended the transaction."""


class EpochSender(Client):
    """Writes a few records at a time to some of its partitions, then commits or aborts. Its
    attributes are those of `TransactionalClient`.
    """

    def __init__(
        self, bootstrap: str, outputs: list[Part], record: ChaosRecord, name: str, rng: Random
    ) -> None:
        super().__init__(f"transactions {name}", record)
        self.label = name
        self.finished: Counter[Outcome] = Counter()
        self.producer_count = 0
        self.settled_s = -1.0
        self._brokers = bootstrap.split(",")
        self._outputs = outputs
        self._rng = rng
        self._transactional_id = f"chaos-{name}"
        self._number = 0
        self._identity: tuple[int, int] | None = None
        self._clients: dict[str, WireClient] = {}
        self._coordinator = ""
        self._leaders: dict[Part, str] = {}

    def work(self) -> None:
        while not self.ending.is_set():
            if self._identity is None:
                self._begin_anew()
            self._transact()
        for client in self._clients.values():
            client.close()

    # --- transactions -----------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        request = init_producer_id.InitProducerIdRequest(
            self._transactional_id, _TRANSACTION_TIMEOUT_MS
        )
        response = self._query_coordinator(apis.INIT_PRODUCER_ID, request)
        self._identity = response.producer_id, response.producer_epoch
        self.producer_count += 1

    def _transact(self) -> None:
        self._number += 1
        began_s, commit_began_s = self.record.now(), inf
        sends: list[Record] = []
        outcome = Outcome.FAIL
        try:
            if self._fill(sends):
                commit_began_s = self.record.now()
                outcome = Outcome.INFO
                self._end(committed=True)
                outcome = Outcome.OK
            else:
                self._end(committed=False)
        except Fenced as error:
            self.record.tell(f"{self.name} number {self._number}: {error}")
            self._identity = None
        finally:
            self.finished[outcome] += 1
            if outcome is not Outcome.INFO:
                self.settled_s = began_s
            self.record.operate(
                Write(self.name, outcome, began_s, self.record.now(), tuple(sends), commit_began_s)
            )

    def _fill(self, sends: list[Record]) -> bool:
        """Write the records of a transaction. Return whether it should be committed."""
        parts = self._rng.sample(self._outputs, self._rng.randint(2, len(self._outputs)))
        requested = [*parts, *self._rng.choices(parts, k=self._rng.randint(0, 3))]
        sequences: Counter[Part] = Counter()
        pause_s = self._rng.choice((0.0, 0.05, 0.5))
        for part in requested:
            value, at = self._value(sends), len(sends)
            sends.append(Record(part, UNKNOWN, value))
            offset = self._produce(part, value, sequences[part])
            sends[at] = Record(part, offset, value)
            sequences[part] += 1
            self.ending.wait(pause_s)
        if self._rng.random() >= _ABORTED_SHARE:
            return True
        if self._rng.random() < _LATE_SHARE:
            part, value = self._rng.choice(self._outputs), self._value(sends)
            sends.append(Record(part, UNKNOWN, value))
            self._hurry(part, value, sequences[part])
        return False

    def _value(self, sends: list[Record]) -> bytes:
        return b"%s/%d/%d" % (self.label.encode(), self._number, len(sends))

    def _end(self, *, committed: bool) -> None:
        assert self._identity is not None, "an end needs a producer"
        request = end_txn.EndTxnRequest(self._transactional_id, *self._identity, committed)
        response = self._query_coordinator(apis.END_TXN, request)
        self._identity = response.producer_id, response.producer_epoch

    # --- requests ---------------------------------------------------------------------------------

    def _produce(self, part: Part, value: bytes, sequence: int) -> int:
        """Write one record until it is acknowledged. Return its offset. Raises Fenced."""
        request = self._batch(part, value, sequence)
        while True:
            with suppress(KafkaFailed):
                response = self._send_request(self._leader(part), _PRODUCE, request)
                found = response.responses[0].partition_responses[0]
                if self._is_done(_PRODUCE, found.error_code):
                    return int(found.base_offset)
            self._leaders.pop(part, None)
            time.sleep(_PAUSE_S)

    def _hurry(self, part: Part, value: bytes, sequence: int) -> None:
        """Send a batch, and disconnect without waiting for its response."""
        with suppress(KafkaFailed):
            request = self._batch(part, value, sequence)
            self._send_request(self._leader(part), _PRODUCE, request, _HURRY_S)

    def _batch(self, part: Part, value: bytes, sequence: int) -> produce.ProduceRequest:
        assert self._identity is not None, "a batch needs a producer"
        producer_id, epoch = self._identity
        batch = encode_batch(
            [BatchRecord(0, time.time_ns() // 1_000_000, None, value)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        data = produce.PartitionProduceData(part[1], memoryview(bytes(batch)))
        topic = produce.TopicProduceData(name=part[0], partition_data=[data])
        return produce.ProduceRequest(self._transactional_id, -1, 30_000, [topic])

    def _query_coordinator(self, api: ApiSpec, request: object) -> Any:
        """Query the coordinator, and retry transient errors. Raises Fenced."""
        while True:
            with suppress(KafkaFailed):
                response = self._send_request(self._find_coordinator(), api, request)
                if self._is_done(api, response.error_code):
                    return response
            self._coordinator = ""
            time.sleep(_PAUSE_S)

    def _is_done(self, api: ApiSpec, number: int) -> bool:
        """Return whether the response is final; otherwise the caller retries. Raises Fenced."""
        code = known_code(number)
        if code in _FENCED:
            raise Fenced(f"{api.name} gets {code.name}")
        if code is not ErrorCode.NONE and not code.retriable:
            self.record.violate(f"{self.name}: {api.name} gets {code.name}")
            raise Fenced(f"{api.name} gets {code.name}")
        return code is ErrorCode.NONE

    def _find_coordinator(self) -> str:
        if not self._coordinator:
            request = find_coordinator.FindCoordinatorRequest(
                key_type=_KEY_OF_TRANSACTION, coordinator_keys=[self._transactional_id]
            )
            (found,) = self._send_request(
                self._any_broker(), apis.FIND_COORDINATOR, request
            ).coordinators
            if found.error_code:
                raise KafkaFailed(f"no coordinator: {known_code(found.error_code).name}")
            self._coordinator = f"{found.host}:{found.port}"
        return self._coordinator

    def _leader(self, part: Part) -> str:
        if part not in self._leaders:
            topic = metadata.MetadataRequestTopic(name=part[0])
            request = metadata.MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
            response = self._send_request(self._any_broker(), apis.METADATA, request)
            addresses = {
                broker.node_id: f"{broker.host}:{broker.port}" for broker in response.brokers
            }
            self._leaders = {
                (part[0], found.partition_index): addresses[found.leader_id]
                for found in response.topics[0].partitions
                if found.leader_id in addresses
            }
        if part not in self._leaders:
            raise KafkaFailed(f"{part[0]}-{part[1]} has no leader")
        return self._leaders[part]

    def _send_request(
        self, address: str, api: ApiSpec, request: object, timeout_s: float = _TIMEOUT_S
    ) -> Any:
        """Send one request over the connection to this address. Raises KafkaFailed; the next
        request then opens a new connection.
        """
        client = self._clients.pop(address, None) or WireClient(address)
        try:
            response = client.send_request(api, request, object, timeout_s)
        except KafkaFailed:
            client.close()
            raise
        self._clients[address] = client
        return response

    def _any_broker(self) -> str:
        return self._rng.choice(self._brokers)
