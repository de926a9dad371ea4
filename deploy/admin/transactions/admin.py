"""Ask brokers about transactions, and abort one.

Each broker knows the transactions that it coordinates and the producers of the partitions that it
leads, so most questions go to all of them.
Invariant: a failure is a KafkaFailed that names what could not be asked.
Limits: PARTITIONS_PER_REQUEST_MAX; a partition whose leader changes is asked for ROUNDS_MAX times.
Source: KIP-664.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Self

from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.admin.transactions.views import (
    ListedTransaction,
    OpenTransaction,
    TransactionView,
    hanging,
    older_than,
    still_open,
)
from penstock.deploy.clients.brokers import Brokers, by_topic
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.errors import KafkaFailed
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, explain, known_code
from penstock.protocol.gen import (
    describe_producers,
    describe_transactions,
    list_transactions,
    metadata,
    write_txn_markers,
)

PARTITIONS_PER_REQUEST_MAX: Final = 500
ROUNDS_MAX: Final = 10
_PAUSE_S: Final = 0.2
_MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})


class TransactionsClient:
    """Connects to the brokers that it needs. Use as a context manager."""

    def __init__(self, bootstrap: str, skipped: Collection[int] = ()) -> None:
        """skipped: ids of coordinators that `listed` leaves out, because they do not respond."""
        self._brokers = Brokers(bootstrap, skipped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._brokers.close()

    # --- coordinators -----------------------------------------------------------------------------

    def listed(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Return the transactional ids of all coordinators, by name; only those in these states, of
        these producers and that match the pattern (RE2), if there are any. Raises KafkaFailed for
        states that do not exist and for an invalid pattern.
        """
        request = list_transactions.ListTransactionsRequest(
            list(states), list(producer_ids), transactional_id_pattern=pattern
        )
        found: list[ListedTransaction] = []
        for node_id, client in self._brokers.all():
            answer = client.ask(
                apis.LIST_TRANSACTIONS,
                request,
                list_transactions.encode_request,
                list_transactions.decode_response,
            )
            if answer.error_code:
                raise KafkaFailed(
                    f"broker {node_id} cannot list transactions: {explain(answer.error_code, None)}"
                )
            if answer.unknown_state_filters:
                raise KafkaFailed(
                    f"there are no states {', '.join(answer.unknown_state_filters)}; there are"
                    " Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"
                )
            found += [
                ListedTransaction(
                    item.transactional_id, node_id, item.producer_id, item.transaction_state
                )
                for item in answer.transaction_states
            ]
        return sorted(found, key=lambda item: item.transactional_id)

    def describe(self, transactional_id: str) -> TransactionView:
        """Describe one transactional id. Raises KafkaFailed if it does not exist."""
        node_id, coordinator = self._brokers.transaction_coordinator(transactional_id)
        states = coordinator.ask(
            apis.DESCRIBE_TRANSACTIONS,
            describe_transactions.DescribeTransactionsRequest([transactional_id]),
            describe_transactions.encode_request,
            describe_transactions.decode_response,
        )
        (state,) = states.transaction_states
        if state.error_code:
            raise KafkaFailed(
                f"transactional id {transactional_id!r}: {explain(state.error_code, None)}"
            )
        return _view(state, node_id)

    # --- partitions -------------------------------------------------------------------------------

    def open_transactions(
        self, topic: str | None = None, partition: int | None = None
    ) -> list[OpenTransaction]:
        """Return the transactions that are open in all partitions, in those of a topic, or in one.
        Raises KafkaFailed if a partition has no leader for some seconds.
        """
        wanted: set[Key] | None = None if partition is None else {Key(topic or "", partition)}
        found: list[OpenTransaction] = []
        for round_number in range(ROUNDS_MAX):
            if round_number:
                time.sleep(_PAUSE_S)
            answer = self._metadata(None if topic is None else [topic])
            leaders = _leaders(answer, wanted)
            wanted = set()
            for broker in answer.brokers:
                keys = sorted(key for key, node_id in leaders.items() if node_id == broker.node_id)
                for at in range(0, len(keys), PARTITIONS_PER_REQUEST_MAX):
                    some = keys[at : at + PARTITIONS_PER_REQUEST_MAX]
                    transactions, moved = self._open_at(broker, some)
                    found += transactions
                    wanted |= moved
            present = {broker.node_id for broker in answer.brokers}
            wanted |= {key for key, node_id in leaders.items() if node_id not in present}
            if not wanted:
                return sorted(found, key=lambda item: (item.key, item.start_offset))
        raise KafkaFailed(f"partition {min(wanted or ())} has no leader; try again later")

    def _open_at(
        self, broker: metadata.MetadataResponseBroker, keys: Collection[Key]
    ) -> tuple[list[OpenTransaction], set[Key]]:
        """Return the open transactions in partitions that this broker should lead, and those that
        it does not lead.
        """
        answer = self._client(broker).ask(
            apis.DESCRIBE_PRODUCERS,
            describe_producers.DescribeProducersRequest(
                [
                    describe_producers.TopicRequest(name, indexes)
                    for name, indexes in by_topic(keys).items()
                ]
            ),
            describe_producers.encode_request,
            describe_producers.decode_response,
        )
        found: list[OpenTransaction] = []
        moved: set[Key] = set()
        for topic in answer.topics:
            for part in topic.partitions:
                key = Key(topic.name, part.partition_index)
                if known_code(part.error_code) in _MOVED:
                    moved.add(key)
                elif part.error_code:
                    raise KafkaFailed(f"{key}: {explain(part.error_code, part.error_message)}")
                found += _open_transactions(key, part.active_producers)
        return found, moved

    def find_hanging(
        self, topic: str | None, partition: int | None, age_ms: int, now_ms: int
    ) -> list[OpenTransaction]:
        """Return the open transactions that no coordinator will end, without a record for `age_ms`.
        As a coordinator may end one meanwhile, all are looked up again at the end.
        """
        found = older_than(self.open_transactions(topic, partition), age_ms, now_ms)
        found = self.not_driven(found)
        if not found:
            return []
        now_open: list[OpenTransaction] = []
        for key in sorted({item.key for item in found}):
            now_open += self.open_transactions(*key)
        return still_open(found, now_open)

    def not_driven(self, candidates: Sequence[OpenTransaction]) -> list[OpenTransaction]:
        """Return the candidates that no coordinator will end."""
        if not candidates:
            return []
        listed = self.listed(producer_ids=sorted({item.producer_id for item in candidates}))
        ids = {item.producer_id: item.transactional_id for item in listed}
        described = {name: self.describe(name) for name in sorted(set(ids.values()))}
        return hanging(candidates, ids, described)

    def abort(self, item: OpenTransaction) -> None:
        """Abort a transaction in one partition, with a marker that is durable on return. Raises
        KafkaFailed if a later producer or coordinator has written there.
        """
        answer = self._metadata([item.topic])
        node_id = _leaders(answer, {item.key}).get(item.key, -1)
        leader = next((found for found in answer.brokers if found.node_id == node_id), None)
        if leader is None:
            raise KafkaFailed(f"partition {item.key} has no leader; try again later")
        marker = write_txn_markers.WritableTxnMarker(
            producer_id=item.producer_id,
            producer_epoch=item.producer_epoch,
            transaction_result=False,
            topics=[write_txn_markers.WritableTxnMarkerTopic(item.topic, [item.partition])],
            # No coordinator has an epoch below 0.
            coordinator_epoch=max(item.coordinator_epoch, 0),
        )
        done = self._client(leader).ask(
            apis.WRITE_TXN_MARKERS,
            write_txn_markers.WriteTxnMarkersRequest([marker]),
            write_txn_markers.encode_request,
            write_txn_markers.decode_response,
        )
        code = done.markers[0].topics[0].partitions[0].error_code
        if code:
            raise KafkaFailed(f"{item.key} was not changed: {explain(code, None)}")

    # --- brokers ----------------------------------------------------------------------------------

    def _metadata(self, topics: Sequence[str] | None) -> metadata.MetadataResponse:
        """Return brokers and topics; None: all topics. Raises KafkaFailed for a missing topic."""
        answer = self._brokers.metadata(topics)
        for topic in answer.topics:
            if topic.error_code:
                raise KafkaFailed(f"topic {topic.name!r}: {explain(topic.error_code, None)}")
        return answer

    def _client(self, broker: metadata.MetadataResponseBroker) -> WireClient:
        return self._brokers.client(broker.node_id, broker.host, broker.port)


def _leaders(answer: metadata.MetadataResponse, wanted: Collection[Key] | None) -> dict[Key, int]:
    """Return the leaders of the wanted partitions; None: of all. Raises KafkaFailed for a partition
    that does not exist.
    """
    leaders = {
        Key(topic.name or "", part.partition_index): part.leader_id
        for topic in answer.topics
        for part in topic.partitions
    }
    if wanted is None:
        return leaders
    if missing := sorted(key for key in wanted if key not in leaders):
        raise KafkaFailed(f"partition {missing[0]} does not exist")
    return {key: leaders[key] for key in wanted}


def _open_transactions(
    key: Key, producers: Iterable[describe_producers.ProducerState]
) -> list[OpenTransaction]:
    return [
        OpenTransaction(
            key.topic,
            key.partition,
            found.producer_id,
            found.producer_epoch,
            found.coordinator_epoch,
            found.current_txn_start_offset,
            found.last_timestamp,
        )
        for found in producers
        if found.current_txn_start_offset >= 0
    ]


def _view(state: describe_transactions.TransactionState, coordinator: int) -> TransactionView:
    started_ms = state.transaction_start_time_ms
    return TransactionView(
        state.transactional_id,
        coordinator,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        started_ms if started_ms >= 0 else None,
        [str(Key(topic.topic, index)) for topic in state.topics for index in topic.partitions],
    )
