"""Query brokers for transactions, and abort transactions.

Each broker lists the transactions that it coordinates and the producers of the partitions that it
leads, so most requests go to all brokers. Invariant: every failure is a KafkaFailed that describes
the failed request. Limits: PARTITIONS_PER_REQUEST_MAX. Source: KIP-664.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.controller.metadata.internal_topics import TRANSACTIONS_TOPIC
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.admin.transactions.views import (
    ListedTransaction,
    OpenTransaction,
    TransactionView,
    hanging,
    older_than,
    still_open,
)
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.errors import UsageError
from penstock.protocol import apis
from penstock.protocol.client.brokers import TRANSACTION, Partition, by_topic
from penstock.protocol.client.errors import DoesNotExist, KafkaFailed, Moved, NoResponse, check
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import (
    describe_producers,
    describe_transactions,
    list_transactions,
    write_txn_markers,
)
from penstock.protocol.offset_specs import LATEST

PARTITIONS_PER_REQUEST_MAX: Final = 500
_SETTLE_S: Final = 3.0
"""How long to wait for the coordinators of all transactional ids."""


class CoordinatorsIncomplete(KafkaFailed):
    """A transactional id may currently have no coordinator, or one that does not respond."""


class TransactionsClient(Brokers):
    """A client of the transaction coordinators, and a context manager. Connects to brokers on
    demand. `listed` omits the coordinators in `skipped`.
    """

    # --- coordinators -----------------------------------------------------------------------------

    def listed(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Return the transactional ids of all coordinators by name, like `listed_by_responding`,
        but raise KafkaFailed if a coordinator does not respond.
        """
        found, problems = self.listed_by_responding(states, producer_ids, pattern)
        if problems:
            raise NoResponse(next(iter(problems.values())))
        return found

    def listed_by_responding(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        pattern: str | None = None,
    ) -> tuple[list[ListedTransaction], dict[int, str]]:
        """Return the transactional ids of the coordinators that respond by name, optionally
        filtered by state, producer id and pattern (RE2), and the problems of the others by broker.
        Raises UsageError for states that do not exist, KafkaFailed for an invalid pattern.
        """
        request = list_transactions.ListTransactionsRequest(
            list(states), list(producer_ids), transactional_id_pattern=pattern
        )

        def of_coordinator(node_id: int) -> list[ListedTransaction]:
            response = self.send_request(
                apis.LIST_TRANSACTIONS,
                request,
                list_transactions.ListTransactionsResponse,
                node=node_id,
            )
            what = f"broker {node_id} cannot list transactions"
            self.check(response.error_code, None, what)
            if response.unknown_state_filters:
                raise UsageError(
                    f"unknown states {', '.join(response.unknown_state_filters)}; use Empty, "
                    "Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"
                )
            return [
                ListedTransaction(
                    item.transactional_id, node_id, item.producer_id, item.transaction_state
                )
                for item in response.transaction_states
            ]

        listed, problems = self.of_all(of_coordinator)
        found = [item for items in listed.values() for item in items]
        return sorted(found, key=lambda item: item.transactional_id), problems

    def describe(self, transactional_id: str) -> TransactionView:
        """Describe one transactional id. Raises KafkaFailed if it does not exist."""
        node_id = self.coordinator(TRANSACTION, transactional_id)
        states = self.send_request(
            apis.DESCRIBE_TRANSACTIONS,
            describe_transactions.DescribeTransactionsRequest([transactional_id]),
            describe_transactions.DescribeTransactionsResponse,
            node=node_id,
        )
        (state,) = states.transaction_states
        check(state.error_code, None, f"transactional id {transactional_id!r}")
        started_ms = state.transaction_start_time_ms
        return TransactionView(
            state.transactional_id,
            node_id,
            state.producer_id,
            state.producer_epoch,
            state.transaction_state,
            state.transaction_timeout_ms,
            started_ms if started_ms >= 0 else None,
            [str(Key(topic.topic, index)) for topic in state.topics for index in topic.partitions],
        )

    # --- partitions -------------------------------------------------------------------------------

    def open_transactions(
        self, topic: str | None = None, partition: int | None = None
    ) -> list[OpenTransaction]:
        """Return the open transactions in all partitions, in all partitions of a topic, or in one
        partition. Raises KafkaFailed if a partition has no leader for a few seconds.
        """

        def send_request() -> list[OpenTransaction]:
            found, not_led = self._open_in(self._keys(topic, partition))
            if not_led:
                raise Moved(next(iter(not_led.values())))
            return found

        return self.retried(send_request)

    def _open_in(self, wanted: Iterable[Key]) -> tuple[list[OpenTransaction], dict[Key, str]]:
        """Return the open transactions, and the errors of partitions that now have a different
        leader. Raises Moved.
        """
        found: list[OpenTransaction] = []
        not_led: dict[Key, str] = {}
        for leader, keys in self.by_leader(wanted).items():
            for at in range(0, len(keys), PARTITIONS_PER_REQUEST_MAX):
                some = keys[at : at + PARTITIONS_PER_REQUEST_MAX]
                found += self._open_at(leader, some, not_led)
        return sorted(found, key=lambda item: (item.key, item.start_offset)), not_led

    def _open_at(
        self, leader: int, keys: Iterable[Partition], not_led: dict[Key, str]
    ) -> list[OpenTransaction]:
        """Return the open transactions in partitions of this leader. Raises Moved."""
        response = self.send_request(
            apis.DESCRIBE_PRODUCERS,
            describe_producers.DescribeProducersRequest(
                [
                    describe_producers.TopicRequest(name, indexes)
                    for name, indexes in by_topic(keys).items()
                ]
            ),
            describe_producers.DescribeProducersResponse,
            node=leader,
        )
        found: list[OpenTransaction] = []
        for topic in response.topics:
            for part in topic.partitions:
                key = Key(topic.name, part.partition_index)
                try:
                    self.check(part.error_code, part.error_message, str(key))
                except Moved as error:
                    not_led[key] = str(error)
                found += [
                    OpenTransaction(
                        *key,
                        item.producer_id,
                        item.producer_epoch,
                        item.coordinator_epoch,
                        item.current_txn_start_offset,
                        item.last_timestamp,
                    )
                    for item in part.active_producers
                    if item.current_txn_start_offset >= 0
                ]
        return found

    def find_hanging(
        self, topic: str | None, partition: int | None, age_ms: int, now_ms: int
    ) -> tuple[list[OpenTransaction], list[str]]:
        """Return the open transactions that no coordinator will end, that have written no record
        for `age_ms`, and the reasons why others may be missing. All of them are checked again at
        the end, because a coordinator may have ended some in the meantime.
        """

        results: list[list[OpenTransaction]] = []
        missing: list[str] = []

        def search() -> None:
            partitions = self._partitions(topic, partition)
            found, not_led = self._open_in(key for key, is_led in partitions.items() if is_led)
            results.append(found)
            missing[:] = [
                f"{key} has no leader" for key, is_led in partitions.items() if not is_led
            ]
            missing.extend(not_led.values())
            if missing:
                raise Moved(missing[0])

        try:
            self.retried(search, time.monotonic() + _SETTLE_S)
        except Moved:
            if not results:
                raise
        try:
            found = self.not_driven(older_than(results[-1], age_ms, now_ms))
        except CoordinatorsIncomplete as error:
            return [], [*missing, str(error)]
        now_open: list[OpenTransaction] = []
        for key in sorted({item.key for item in found}):
            now_open += self.open_transactions(*key)
        return still_open(found, now_open), missing

    def not_driven(self, candidates: Sequence[OpenTransaction]) -> list[OpenTransaction]:
        """Return the candidates that no coordinator will end. Raises CoordinatorsIncomplete, after
        a few seconds, if a transactional id may currently have no coordinator.
        """
        if not candidates:
            return []
        try:
            return self.retried(lambda: self._not_driven(candidates), time.monotonic() + _SETTLE_S)
        except (Moved, NoResponse) as error:
            raise CoordinatorsIncomplete(
                f"{error}: it is unknown which transactions its coordinator will end; try again"
                " when all partitions of __transaction_state have a leader"
            ) from None

    def _not_driven(self, candidates: Sequence[OpenTransaction]) -> list[OpenTransaction]:
        coordinators = self._coordinators()
        listed, problems = self.listed_by_responding(
            producer_ids=sorted({item.producer_id for item in candidates})
        )
        for _, leader, _ in coordinators:
            if leader in problems:
                raise NoResponse(problems[leader])
        ids = {item.producer_id: item.transactional_id for item in listed}
        described = {name: self.describe(name) for name in sorted(set(ids.values()))}
        if self._coordinators() != coordinators:
            # A broker may have received the request before it became the coordinator of some ids.
            raise Moved(f"the leaders of {TRANSACTIONS_TOPIC} have changed")
        return hanging(candidates, ids, described)

    def _coordinators(self) -> list[tuple[int, int, int]]:
        """Return the partitions of `__transaction_state` with their leaders and leader epochs.
        Raises Moved if one has no leader: no broker then lists its transactional ids. Brokers
        announce the next leader before it is elected, so the leaders are queried as well.
        """
        (found,) = self.metadata([TRANSACTIONS_TOPIC]).topics
        if known_code(found.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return []  # no transaction has ever been coordinated
        check(found.error_code, None, f"topic {TRANSACTIONS_TOPIC!r}")
        keys = [(TRANSACTIONS_TOPIC, part.partition_index) for part in found.partitions]
        for leader, led in self.by_leader(keys).items():
            ends = self.offsets_at(leader, led, dict.fromkeys(led, LATEST))
            for (topic, index), end in ends.items():
                self.check(end.error_code, None, f"{topic}-{index} has no leader")
        return sorted(
            (part.partition_index, part.leader_id, part.leader_epoch) for part in found.partitions
        )

    def abort(self, item: OpenTransaction) -> None:
        """Abort a transaction in one partition, with a marker that is durable on return. Raises
        KafkaFailed if a later producer or coordinator has written to the partition.
        """
        (key,) = self._keys(item.topic, item.partition)
        marker = write_txn_markers.WritableTxnMarker(
            producer_id=item.producer_id,
            producer_epoch=item.producer_epoch,
            transaction_result=False,
            topics=[write_txn_markers.WritableTxnMarkerTopic(item.topic, [item.partition])],
            # The epoch of a coordinator is at least 0.
            coordinator_epoch=max(item.coordinator_epoch, 0),
        )
        done = self.send_request(
            apis.WRITE_TXN_MARKERS,
            write_txn_markers.WriteTxnMarkersRequest([marker]),
            write_txn_markers.WriteTxnMarkersResponse,
            node=self.leader(*key),
        )
        code = done.markers[0].topics[0].partitions[0].error_code
        check(code, None, f"{item.key} was not changed")

    def _keys(self, topic: str | None, partition: int | None) -> list[Key]:
        return list(self._partitions(topic, partition))

    def _partitions(self, topic: str | None, partition: int | None) -> dict[Key, bool]:
        """Return all partitions, all partitions of a topic, or one partition, in order, and whether
        each has a leader. Raises KafkaFailed if it does not exist.
        """
        response = self.metadata(None if topic is None else [topic])
        for found in response.topics:
            check(found.error_code, None, f"topic {found.name!r}")
        alive = {broker.node_id for broker in response.brokers}
        partitions = {
            Key(found.name or "", part.partition_index): part.leader_id in alive
            for found in response.topics
            for part in found.partitions
        }
        if partition is None:
            return dict(sorted(partitions.items()))
        key = Key(topic or "", partition)
        if key not in partitions:
            raise DoesNotExist(f"partition {key} does not exist")
        return {key: partitions[key]}
