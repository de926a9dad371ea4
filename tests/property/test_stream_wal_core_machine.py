"""Drive the WAL core with random appends, completion orders, pauses and failures.

Acknowledgements must be in order and without gaps, no group may be lost, and none may be
acknowledged after a failure.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.base.ids import WalSequence
from penstock.stream.config import StreamConfig
from penstock.stream.wal.core import WalCore
from penstock.stream.wal.sender import Sender

CONFIG = StreamConfig(
    bulk_bytes_max=1_000,
    wal_in_flight_max=3,
    batching_bytes_per_s=5_000,
    wal_linger_ms=100,
    wal_linger_idle_ms=20,
)


class WalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core: WalCore[int] = WalCore(CONFIG)
        self.senders = [Sender() for _ in range(3)]
        self.sent_by: list[int | None] = []
        self.now = 1.0
        self.appended = 0
        self.acknowledged: list[int] = []
        self.in_flight: dict[WalSequence, list[int]] = {}
        self.durable_slots: set[WalSequence] = set()
        self.next_slot = 0
        self.failed_groups: list[int] | None = None

    @precondition(lambda self: self.failed_groups is None)
    @rule(size_bytes=st.integers(1, 1_500), sender=st.sampled_from([None, 0, 1, 2]))
    def append(self, size_bytes: int, sender: int | None) -> None:
        client = None if sender is None else self.senders[sender]
        self.core.append(self.appended, size_bytes, self.now, client)
        self.sent_by.append(sender)
        self.appended += 1

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.2, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def start_puts(self) -> None:
        while (bulk := self.core.next_bulk(self.now)) is not None:
            assert self.failed_groups is None
            assert bulk.sequence == self.next_slot
            self.next_slot += 1
            self.in_flight[bulk.sequence] = list(bulk.groups)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def put_ends(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.in_flight)))
        del self.in_flight[sequence]
        self.durable_slots.add(sequence)
        for bulk in self.core.put_succeeded(sequence, self.now):
            assert self.failed_groups is None
            assert all(slot in self.durable_slots for slot in range(bulk.sequence + 1)), (
                "acknowledged although an earlier slot is not durable"
            )
            self.acknowledged += bulk.groups

    @precondition(lambda self: self.failed_groups is None)
    @rule()
    def flush(self) -> None:
        self.core.flush()
        assert self.core.wake_at(self.now) is None

    @precondition(lambda self: self.failed_groups is None and self.in_flight)
    @rule()
    def fail(self) -> None:
        self.failed_groups = [group for bulk in self.core.fail() for group in bulk.groups]

    @invariant()
    def nothing_is_lost_or_out_of_order(self) -> None:
        self.core.check_invariants()
        assert self.acknowledged == list(range(len(self.acknowledged)))
        if self.failed_groups is not None:
            assert self.acknowledged + self.failed_groups == list(range(self.appended))

    @invariant()
    def clients_wait_for_what_is_not_acknowledged(self) -> None:
        waiting = [] if self.failed_groups is not None else self.sent_by[len(self.acknowledged) :]
        for number, sender in enumerate(self.senders):
            assert sender.in_flight_count == waiting.count(number)

    @invariant()
    def something_always_moves(self) -> None:
        """Check that with nothing in flight the open slot is due within the linger time, so that no
        append waits forever.
        """
        if (
            self.failed_groups is None
            and not self.in_flight
            and len(self.acknowledged) < self.appended
            and not self.core._sealed
        ):
            wake_at = self.core.wake_at(self.now)
            assert wake_at is not None
            assert wake_at <= max(self.now, self.core._last_append) + 0.1


TestWalMachine = WalMachine.TestCase
TestWalMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
