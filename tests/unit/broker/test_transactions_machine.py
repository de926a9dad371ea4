"""One transactional id compared with a model: for any order of requests, time and failures, an
outcome is decided once.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker.transactions.machine import Transaction, new_transaction
from penstock.broker.transactions.model import (
    EPOCH_LAST_GIVEN,
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    Persist,
    ProducerIdentity,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
    WriteMarkers,
)
from penstock.protocol.error_codes import ErrorCode

LIMITS = TransactionLimits(partitions_max=5, id_expiration_ms=1_000_000)
TIMEOUT_MS = 1_000
PARTITIONS = [("t", index) for index in range(6)]


def persisted(transaction: Transaction, outcome: ErrorCode | Persist | None) -> WriteMarkers | None:
    assert isinstance(outcome, Persist), outcome
    return transaction.persisted()


def initialized(
    transaction: Transaction, producer_id: int = 7, expected: ProducerIdentity | None = None
) -> ProducerIdentity:
    persisted(transaction, transaction.init_producer(TIMEOUT_MS, expected, producer_id, 0))
    return ProducerIdentity(transaction.current.producer_id, transaction.current.producer_epoch)


def test_commit_of_a_transaction() -> None:
    transaction = new_transaction("tid", LIMITS)
    producer = initialized(transaction)
    assert producer == ProducerIdentity(7, 0)
    assert persisted(transaction, transaction.add_partitions(producer, PARTITIONS[:2], 5)) is None
    markers = persisted(transaction, transaction.end(producer, committed=True, now_ms=6))
    assert markers is not None
    assert markers.is_commit
    assert markers.metadata.partitions == frozenset(PARTITIONS[:2])
    assert (
        transaction.add_partitions(producer, PARTITIONS[:1], 7) is ErrorCode.CONCURRENT_TRANSACTIONS
    )
    assert transaction.end(producer, committed=True, now_ms=7) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert transaction.end(producer, committed=False, now_ms=7) is ErrorCode.INVALID_TXN_STATE
    assert persisted(transaction, transaction.markers_written(8)) is None
    assert transaction.end(producer, committed=True, now_ms=9) is ErrorCode.NONE
    assert transaction.end(producer, committed=False, now_ms=9) is ErrorCode.INVALID_TXN_STATE


def test_a_new_producer_aborts_the_open_transaction_and_fences_the_old_one() -> None:
    transaction = new_transaction("tid", LIMITS)
    old = initialized(transaction)
    persisted(transaction, transaction.add_partitions(old, PARTITIONS[:1], 0))
    outcome = transaction.init_producer(TIMEOUT_MS, None, None, 1)
    assert isinstance(outcome, Persist)
    assert outcome.response is ErrorCode.CONCURRENT_TRANSACTIONS
    markers = transaction.persisted()
    assert markers is not None
    assert (markers.is_commit, markers.metadata.producer_epoch) == (False, 1), (
        "the marker fences the old epoch at the partitions"
    )
    assert transaction.end(old, committed=True, now_ms=2) is ErrorCode.PRODUCER_FENCED
    persisted(transaction, transaction.markers_written(3))
    assert initialized(transaction) == ProducerIdentity(7, 2)
    assert transaction.add_partitions(old, PARTITIONS, 4) is ErrorCode.PRODUCER_FENCED


def test_a_timeout_aborts_and_fences_once() -> None:
    transaction = new_transaction("tid", LIMITS)
    producer = initialized(transaction)
    persisted(transaction, transaction.add_partitions(producer, PARTITIONS[:1], 100))
    assert transaction.tick(100 + TIMEOUT_MS) is None
    assert transaction.tick(101 + TIMEOUT_MS) is not None
    assert transaction.tick(200 + TIMEOUT_MS) is None, "a record is on its way"
    transaction.not_persisted()
    markers = persisted(transaction, transaction.tick(201 + TIMEOUT_MS))
    assert markers is not None
    assert (markers.is_commit, markers.metadata.producer_epoch) == (False, 1), (
        "a record that failed leaves no trace"
    )
    assert transaction.end(producer, committed=True, now_ms=202) is ErrorCode.PRODUCER_FENCED


def test_a_repeated_request_gets_the_same_response() -> None:
    transaction = new_transaction("tid", LIMITS)
    first = initialized(transaction)
    second = initialized(transaction, expected=first)
    assert second == ProducerIdentity(7, 1)
    assert initialized(transaction, expected=first) == second, "KIP-360: the same request again"
    assert initialized(transaction, expected=second) == ProducerIdentity(7, 2)
    assert transaction.init_producer(TIMEOUT_MS, first, None, 0) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("producer_id", "epoch"),
    [(7, 0), (7, 3), (7, EPOCH_LAST_GIVEN - 1), (6, EPOCH_LAST_GIVEN), (9, EPOCH_LAST_GIVEN)],
)
def test_only_the_last_epoch_of_the_previous_producer_id_counts_as_ended(
    producer_id: int, epoch: int
) -> None:
    current = TransactionMetadata(
        "tid",
        8,
        0,
        TIMEOUT_MS,
        TransactionState.COMPLETE_COMMIT,
        last_producer_id=7,
        client_version=EPOCH_PER_TRANSACTION,
    )
    transaction = Transaction(current, LIMITS)

    def end(producer: ProducerIdentity) -> ErrorCode | Persist:
        return transaction.end_epoch(producer, committed=True, fresh_producer_id=10, now_ms=0)

    other = ProducerIdentity(producer_id, epoch)
    assert end(other) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(ProducerIdentity(7, EPOCH_LAST_GIVEN)) is ErrorCode.NONE


def test_an_earlier_epoch_of_the_previous_producer_id_does_not_count_as_ended() -> None:
    current = TransactionMetadata(
        "tid", 8, 0, TIMEOUT_MS, TransactionState.EMPTY, last_producer_id=7
    )
    transaction = Transaction(current, LIMITS)
    first = ProducerIdentity(8, 0)
    assert initialized(transaction, expected=first) == ProducerIdentity(8, 1)
    stale = ProducerIdentity(7, first.producer_epoch)
    assert transaction.init_producer(TIMEOUT_MS, stale, None, 0) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("epoch", [0, EPOCH_LAST_GIVEN])
def test_a_late_init_producer_id_does_not_abort_the_next_transaction(epoch: int) -> None:
    current = TransactionMetadata("tid", 7, epoch, TIMEOUT_MS, TransactionState.EMPTY)
    transaction, first = Transaction(current, LIMITS), ProducerIdentity(7, epoch)
    second = initialized(transaction, 8, first)
    persisted(transaction, transaction.add_partitions(second, frozenset({("t", 0)}), 1))
    assert transaction.init_producer(TIMEOUT_MS, first, 9, 2) is ErrorCode.PRODUCER_FENCED
    persisted(transaction, transaction.end(second, committed=True, now_ms=3))


@pytest.mark.parametrize("epoch", [0, EPOCH_LAST_GIVEN])
@pytest.mark.parametrize("committed", [False, True])
def test_a_late_init_producer_id_between_transactions_changes_nothing(
    epoch: int, committed: bool
) -> None:
    """The response of EndTxn was lost, and the producer repeats the request."""
    current = TransactionMetadata("tid", 7, epoch, TIMEOUT_MS, TransactionState.EMPTY)
    transaction, first = Transaction(current, LIMITS), ProducerIdentity(7, epoch)
    second = initialized(transaction, 8, first)
    assert initialized(transaction, 8, first) == second, "repeated before the first transaction"
    for at_ms in range(0, 30, 10):
        persisted(transaction, transaction.add_partitions(second, PARTITIONS[:1], at_ms))
        persisted(transaction, transaction.end(second, committed=committed, now_ms=at_ms))
        persisted(transaction, transaction.markers_written(at_ms))
        assert transaction.init_producer(TIMEOUT_MS, first, 9, 2) is ErrorCode.PRODUCER_FENCED
        assert transaction.end(second, committed=committed, now_ms=3) is ErrorCode.NONE
    assert initialized(transaction, expected=second) == ProducerIdentity(
        second.producer_id, second.producer_epoch + 1
    )


@pytest.mark.parametrize("epoch", [0, 5, EPOCH_LAST_GIVEN])
def test_init_producer_id_after_a_lost_v2_end_txn_gets_the_epoch_of_that_end(epoch: int) -> None:
    current = TransactionMetadata("tid", 7, epoch, TIMEOUT_MS, TransactionState.EMPTY)
    transaction, first = Transaction(current, LIMITS), ProducerIdentity(7, epoch)
    persisted(transaction, transaction.add_partitions(first, PARTITIONS[:1], 0, 2))
    second = ended(transaction, first, committed=True)
    for _ in range(2):
        assert initialized(transaction, expected=first) == second
    persisted(transaction, transaction.add_partitions(second, PARTITIONS[:1], 0, 2))
    ended(transaction, second, committed=True)
    assert transaction.init_producer(TIMEOUT_MS, first, 9, 2) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("knows_its_epoch", [False, True])
@pytest.mark.parametrize("epoch", [0, 3, EPOCH_LAST_GIVEN])
def test_used_up_or_lost_epochs_result_in_another_producer_id(
    epoch: int, knows_its_epoch: bool
) -> None:
    current = TransactionMetadata("tid", 7, epoch, TIMEOUT_MS, TransactionState.COMPLETE_COMMIT)
    transaction = Transaction(current, LIMITS, epochs_may_be_lost=epoch < EPOCH_LAST_GIVEN)
    old = ProducerIdentity(7, epoch)
    expected = old if knows_its_epoch else None
    assert transaction.needs_producer_id(expected)
    assert (
        transaction.init_producer(TIMEOUT_MS, expected, None, 0)
        is ErrorCode.CONCURRENT_TRANSACTIONS
    ), "the id is not there yet"
    assert initialized(transaction, 8, expected) == ProducerIdentity(8, 0)
    if knows_its_epoch:
        assert initialized(transaction, 9, old) == ProducerIdentity(8, 0), "the same request again"
    else:
        assert transaction.init_producer(TIMEOUT_MS, old, 9, 0) is ErrorCode.PRODUCER_FENCED, (
            "somebody else has begun since"
        )
    assert initialized(transaction, 9) == ProducerIdentity(8, 1), "one new id is enough"


LAST_EPOCH = TransactionMetadata(
    "tid",
    7,
    EPOCH_LAST_GIVEN,
    TIMEOUT_MS,
    TransactionState.ONGOING,
    frozenset(PARTITIONS[:1]),
    0,
    0,
)


def test_the_last_epoch_is_reserved_for_fencing() -> None:
    transaction = Transaction(LAST_EPOCH, LIMITS)
    markers = persisted(transaction, transaction.tick(TIMEOUT_MS + 1))
    assert markers is not None
    assert markers.metadata.producer_epoch == EPOCH_MAX
    persisted(transaction, transaction.markers_written(0))
    assert initialized(transaction, 8) == ProducerIdentity(8, 0)


def test_too_many_partitions_are_rejected_and_an_unused_id_is_removed() -> None:
    transaction = new_transaction("tid", LIMITS)
    producer = initialized(transaction)
    assert transaction.add_partitions(producer, PARTITIONS, 0) is ErrorCode.INVALID_REQUEST
    assert transaction.tick(LIMITS.id_expiration_ms) is None
    persisted(transaction, transaction.tick(LIMITS.id_expiration_ms + 1))
    assert transaction.current.state is TransactionState.DEAD


# --- version 2 ------------------------------------------------------------------------------------


def ended(
    transaction: Transaction, producer: ProducerIdentity, *, committed: bool, fresh: int = 90
) -> ProducerIdentity:
    """End the transaction, write its markers, and return the producer of the next transaction."""
    outcome = transaction.end_epoch(
        producer, committed=committed, fresh_producer_id=fresh, now_ms=1
    )
    assert isinstance(outcome, Persist), outcome
    given = outcome.metadata.next_producer
    markers = transaction.persisted()
    assert markers is not None
    assert markers.metadata.client_version == 2
    persisted(transaction, transaction.markers_written(2))
    assert transaction.current.producer == given
    return given


def test_every_end_txn_returns_the_next_epoch_and_its_marker_fences_the_last() -> None:
    transaction = new_transaction("tid", LIMITS)
    first = initialized(transaction)
    persisted(transaction, transaction.add_partitions(first, PARTITIONS[:1], 0, 2))
    outcome = transaction.end_epoch(first, committed=True, fresh_producer_id=None, now_ms=1)
    assert isinstance(outcome, Persist)
    markers = transaction.persisted()
    assert markers is not None
    assert (markers.is_commit, markers.metadata.producer_epoch) == (True, 1)
    second = outcome.metadata.next_producer
    assert second == ProducerIdentity(7, 1)
    for producer in (first, second):
        assert (
            transaction.end_epoch(producer, committed=True, fresh_producer_id=None, now_ms=1)
            is ErrorCode.CONCURRENT_TRANSACTIONS
        )
    persisted(transaction, transaction.markers_written(2))
    for committed, code in ((True, ErrorCode.NONE), (False, ErrorCode.INVALID_TXN_STATE)):
        assert (
            transaction.end_epoch(first, committed=committed, fresh_producer_id=None, now_ms=3)
            is code
        )
    assert transaction.current.next_producer == second
    assert transaction.add_partitions(first, PARTITIONS[:1], 4, 2) is ErrorCode.PRODUCER_FENCED
    persisted(transaction, transaction.add_partitions(second, PARTITIONS[:1], 4, 2))
    assert (
        transaction.end_epoch(first, committed=True, fresh_producer_id=None, now_ms=5)
        is ErrorCode.PRODUCER_FENCED
    ), "the next transaction has begun"


def test_a_transaction_without_partitions_can_be_aborted_but_not_committed() -> None:
    transaction = new_transaction("tid", LIMITS)
    producer = initialized(transaction)
    assert (
        transaction.end_epoch(producer, committed=True, fresh_producer_id=None, now_ms=1)
        is ErrorCode.INVALID_TXN_STATE
    )
    producer = ended(transaction, producer, committed=False)
    assert producer == ProducerIdentity(7, 1)
    assert ended(transaction, producer, committed=False) == ProducerIdentity(7, 2)
    assert transaction.current.started_ms == 1


def test_end_txn_in_the_last_epoch_returns_another_producer_id() -> None:
    transaction = Transaction(LAST_EPOCH, LIMITS)
    old, new = LAST_EPOCH.producer, ProducerIdentity(8, 0)
    assert transaction.end_needs_producer_id
    assert (
        transaction.end_epoch(old, committed=True, fresh_producer_id=None, now_ms=1)
        is ErrorCode.CONCURRENT_TRANSACTIONS
    ), "the id is not there yet"
    outcome = transaction.end_epoch(old, committed=True, fresh_producer_id=8, now_ms=1)
    assert isinstance(outcome, Persist)
    assert outcome.metadata.next_producer == new
    markers = transaction.persisted()
    assert markers is not None
    assert markers.metadata.producer == ProducerIdentity(7, EPOCH_MAX)
    assert (
        transaction.add_partitions(new, PARTITIONS[:1], 2, 2) is ErrorCode.CONCURRENT_TRANSACTIONS
    ), "the producer has the id already"
    from_log = Transaction(
        replace(transaction.current, last_producer_epoch=-1), LIMITS, loaded_ms=0
    )
    persisted(from_log, from_log.markers_written(3))
    assert from_log.current.producer == new
    assert from_log.end_epoch(old, committed=True, fresh_producer_id=9, now_ms=4) is ErrorCode.NONE
    persisted(from_log, from_log.add_partitions(new, PARTITIONS[:1], 5, 2))
    assert (
        from_log.end_epoch(old, committed=True, fresh_producer_id=9, now_ms=6)
        is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


def test_the_epoch_reserved_for_fencing_is_never_returned() -> None:
    """A coordinator has aborted the transaction that used the last epoch."""
    current = TransactionMetadata(
        "tid", 7, EPOCH_MAX, TIMEOUT_MS, TransactionState.COMPLETE_ABORT, client_version=2
    )
    transaction = Transaction(current, LIMITS)
    assert (
        transaction.end_epoch(
            ProducerIdentity(7, EPOCH_LAST_GIVEN),
            committed=False,
            fresh_producer_id=9,
            now_ms=1,
        )
        is ErrorCode.PRODUCER_FENCED
    )


def test_partitions_are_verified_only_in_the_open_transaction() -> None:
    transaction = new_transaction("tid", LIMITS)
    producer = initialized(transaction)
    assert transaction.missing_partitions(producer, PARTITIONS[:2]) == frozenset(PARTITIONS[:2])
    persisted(transaction, transaction.add_partitions(producer, PARTITIONS[:1], 0))
    assert transaction.missing_partitions(producer, PARTITIONS[:2]) == frozenset(PARTITIONS[1:2])
    old = ProducerIdentity(7, -1)
    assert transaction.missing_partitions(old, PARTITIONS[:1]) is ErrorCode.PRODUCER_FENCED
    persisted(transaction, transaction.end(producer, committed=True, now_ms=1))
    assert (
        transaction.missing_partitions(producer, PARTITIONS[:1])
        is ErrorCode.CONCURRENT_TRANSACTIONS
    )


def test_a_transaction_that_ends_with_version_1_keeps_its_epoch() -> None:
    transaction = new_transaction("tid", LIMITS)
    producer = initialized(transaction)
    persisted(transaction, transaction.add_partitions(producer, PARTITIONS[:1], 0, 2))
    markers = persisted(transaction, transaction.end(producer, committed=True, now_ms=1))
    assert markers is not None
    assert (markers.metadata.producer, markers.metadata.client_version) == (producer, 0), (
        "its markers are not checked for a later epoch"
    )


class TransactionWorld(RuleBasedStateMachine):
    """Producers start, fence each other, crash and restart; the coordinator crashes between any two
    steps and continues from the durable record.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transaction = new_transaction("tid", LIMITS)
        self.durable: TransactionMetadata | None = None
        self.now_ms = 0
        self.next_producer_id = 100
        self.producers: list[ProducerIdentity] = []
        self.given: set[ProducerIdentity] = set()
        self.markers: WriteMarkers | None = None
        self.outcomes: dict[ProducerIdentity, list[bool]] = {}

    def _settle(self, outcome: ErrorCode | Persist | None, fails: bool) -> bool:
        """Make the record durable or fail it. Return True if the request succeeded."""
        if not isinstance(outcome, Persist):
            return outcome is ErrorCode.NONE
        if fails:
            self.transaction.not_persisted()
            return False
        self.durable = outcome.metadata
        markers = self.transaction.persisted()
        if markers is not None:
            self.markers = markers
        return outcome.response is ErrorCode.NONE

    def _producer(self, data: st.DataObject) -> ProducerIdentity:
        return data.draw(st.sampled_from(self.producers))

    @rule(data=st.data(), fails=st.booleans(), knows=st.booleans())
    def init(self, data: st.DataObject, fails: bool, knows: bool) -> None:
        expected = self._producer(data) if knows and self.producers else None
        before = self.transaction.current
        fresh = self.next_producer_id
        self.next_producer_id += 1
        if self._settle(
            self.transaction.init_producer(TIMEOUT_MS, expected, fresh, self.now_ms), fails
        ):
            given = ProducerIdentity(
                self.transaction.current.producer_id, self.transaction.current.producer_epoch
            )
            repeated = given == ProducerIdentity(before.producer_id, before.producer_epoch)
            assert repeated or given not in self.given, (
                "an epoch is given once, but for a request that is repeated"
            )
            assert not repeated or expected is not None
            self.given.add(given)
            self.producers.append(given)

    @precondition(lambda self: self.producers)
    @rule(
        data=st.data(),
        fails=st.booleans(),
        partitions=st.sets(st.sampled_from(PARTITIONS[:4]), min_size=1),
    )
    def add(self, data: st.DataObject, fails: bool, partitions: set[tuple[str, int]]) -> None:
        producer = self._producer(data)
        if self._settle(self.transaction.add_partitions(producer, partitions, self.now_ms), fails):
            assert producer == self.producers[-1], "only the newest producer may write"
            assert partitions <= self.transaction.current.partitions

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), fails=st.booleans(), committed=st.booleans())
    def end(self, data: st.DataObject, fails: bool, committed: bool) -> None:
        producer = self._producer(data)
        was_open = self.transaction.current.state is TransactionState.ONGOING
        if self._settle(
            self.transaction.end(producer, committed=committed, now_ms=self.now_ms), fails
        ):
            assert producer == self.producers[-1]
            if was_open:
                self.outcomes.setdefault(producer, []).append(committed)
            else:
                # A version 2 EndTxn may have aborted a transaction without partitions before this
                # epoch.
                assert self.outcomes.get(producer, [committed])[-1] is committed, (
                    "what succeeds twice has the outcome of the first time"
                )

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), fails=st.booleans(), committed=st.booleans())
    def end_epoch(self, data: st.DataObject, fails: bool, committed: bool) -> None:
        producer = self._producer(data)
        before = self.transaction.current
        fresh = self.next_producer_id
        self.next_producer_id += 1
        outcome = self.transaction.end_epoch(
            producer, committed=committed, fresh_producer_id=fresh, now_ms=self.now_ms
        )
        metadata = outcome.metadata if isinstance(outcome, Persist) else before
        given = metadata.next_producer
        if not self._settle(outcome, fails):
            return
        if isinstance(outcome, Persist):
            assert producer == self.producers[-1], "only the newest producer may end"
            assert given not in self.given, "an epoch is given once"
            # This may also be an abort without a transaction: it may follow a version 1 EndTxn in
            # the same epoch.
            self.outcomes.setdefault(producer, []).append(committed)
            self.given.add(given)
            self.producers.append(given)
        elif producer in self.outcomes:
            assert self.outcomes[producer][-1] is committed or before.producer_epoch != (
                producer.producer_epoch + 1
            ), "what succeeds twice has the outcome of the first time"

    @precondition(lambda self: self.markers is not None and self.transaction.pending is None)
    @rule(fails=st.booleans())
    def markers_written(self, fails: bool) -> None:
        assert self.markers is not None
        partitions, is_commit = self.markers.metadata.partitions, self.markers.is_commit
        if self._settle(self.transaction.markers_written(self.now_ms), fails):
            assert partitions or not is_commit, "without partitions there is nothing to commit"
            assert self.transaction.current.state is (
                TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
            )
            self.markers = None

    @rule(passed_ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS + 1]), fails=st.booleans())
    def time(self, passed_ms: int, fails: bool) -> None:
        self.now_ms += passed_ms
        self._settle(self.transaction.tick(self.now_ms), fails)

    @precondition(lambda self: self.durable is not None)
    @rule()
    def coordinator_dies(self) -> None:
        assert self.durable is not None
        from_log = replace(self.durable, last_producer_id=-1, last_producer_epoch=-1)
        self.transaction = Transaction(from_log, LIMITS)
        resumed = self.transaction.resume()
        assert (resumed is None) == (self.markers is None), (
            "what was decided is finished by the next coordinator, nothing else is"
        )
        self.markers = resumed

    @rule(near=st.booleans())
    def epochs_run_out(self, near: bool) -> None:
        current = self.transaction.current
        if (
            near
            and current.state is TransactionState.EMPTY
            and 0 <= current.producer_epoch < EPOCH_LAST_GIVEN - 2
        ):
            self.transaction.current = replace(current, producer_epoch=EPOCH_LAST_GIVEN - 1)
            self.durable = self.transaction.current
            self.producers.append(ProducerIdentity(current.producer_id, EPOCH_LAST_GIVEN - 1))
            self.given.add(self.producers[-1])

    @invariant()
    def only_the_durable_counts(self) -> None:
        current = self.transaction.current
        assert self.transaction.pending is None
        assert (
            current.state in {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
        ) == (self.markers is not None)
        assert (
            current.state
            in {
                TransactionState.EMPTY,
                TransactionState.COMPLETE_COMMIT,
                TransactionState.COMPLETE_ABORT,
            }
            or current.partitions
            or current.state is TransactionState.PREPARE_ABORT
        )


TransactionWorld.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestTransactionWorld = TransactionWorld.TestCase
