"""Compare the window of a share partition with a model that keeps one state per offset. The log has
gaps between batches, and its start is deleted. Members fetch, send valid and invalid
acknowledgements, leave, and let their locks expire; writes succeed or fail, and leaders change.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from penstock.broker.groups.share.partitions.spans import (
    ACQUIRED,
    RENEW,
    Acknowledgement,
    AcquiredRange,
)
from penstock.broker.groups.share.partitions.window import (
    AcknowledgementRefused,
    AcquireOptions,
    Bounds,
    ShareWindow,
    WindowChanges,
    WindowLimits,
)
from penstock.broker.groups.share.state.model import ACKNOWLEDGED, ARCHIVED, AVAILABLE, StateBatch

LIMITS = WindowLimits(records_max=24, deliveries_max=3)
MEMBERS = st.sampled_from(["a", "b", "c"])
LOCK_S = 10.0


class Stored:
    """The state stored by the share coordinator, one entry per offset: the higher delivery count
    wins, and the start never moves back.
    """

    def __init__(self) -> None:
        self.start_offset = 0
        self.states: dict[int, tuple[int, int]] = {}

    def write(self, start_offset: int, batches: Sequence[StateBatch]) -> None:
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                new = (batch.delivery_count, batch.delivery_state)
                self.states[offset] = max(self.states.get(offset, new), new)
        self.start_offset = max(self.start_offset, start_offset)
        self.states = {at: state for at, state in self.states.items() if at >= self.start_offset}

    def batches(self) -> list[StateBatch]:
        return [
            StateBatch(at, at, state, count) for at, (count, state) in sorted(self.states.items())
        ]


class WindowMachine(RuleBasedStateMachine):
    held = Bundle("held")
    """(member, first offset, last offset) of records acquired by a member."""

    @initialize(gaps=st.lists(st.integers(0, 2), min_size=12, max_size=12))
    def begin(self, gaps: list[int]) -> None:
        self.batches: list[Bounds] = []
        offset = 0
        for at, gap in enumerate(gaps):
            offset += gap
            self.batches.append(Bounds(offset, offset + 1 + at % 5))
            offset = self.batches[-1].end
        self.log_start = 0
        self.now = 0.0
        self.stored = Stored()
        self.window = ShareWindow(0, LIMITS)
        self.owners: dict[int, tuple[str, float]] = {}
        self.settled: set[int] = set()
        """Offsets whose final state was acknowledged to a member."""
        self.given_up: set[int] = set()
        """Offsets whose final state was part of a write, successful or not."""
        self.deliveries: dict[int, int] = {}
        self.pending: list[tuple[WindowChanges, set[int]]] = []

    @rule(
        target=held,
        member=MEMBERS,
        count=st.integers(1, 4),
        records=st.integers(1, 12),
        pieces=st.integers(1, 6),
        is_record_limit=st.booleans(),
    )
    def fetch(
        self, member: str, count: int, records: int, pieces: int, is_record_limit: bool
    ) -> Any:
        window = self.window
        offset = window.next_fetch_offset
        read = [item for item in self.batches if item.end > max(offset, self.log_start)][:count]
        if not read or not window.may_acquire:
            return self._held(member, [])
        options = AcquireOptions(records, pieces, is_record_limit)
        end_before = window.end_offset
        found = window.acquire(member, read, offset, options, deadline=self.now + LOCK_S)
        got = [at for item in found for at in range(item.first_offset, item.last_offset + 1)]
        assert got == sorted(set(got))
        for item in found:
            assert item.delivery_count <= LIMITS.deliveries_max
            for at in range(item.first_offset, item.last_offset + 1):
                assert at not in self.owners, f"{at} is locked for {self.owners[at]}"
                assert at not in self.settled, f"{at} was acknowledged"
                assert at >= self.log_start
                self.owners[at] = (member, self.now + LOCK_S)
                assert item.delivery_count <= self.deliveries.get(at, 0) + 1
                self.deliveries[at] = item.delivery_count
        if is_record_limit:
            assert len(got) <= records
        if end_before - window.start_offset <= LIMITS.records_max:
            assert window.records_count <= LIMITS.records_max + max(map(_size, self.batches)) + 2
        return self._held(member, found)

    def _held(self, member: str, found: list[AcquiredRange]) -> Any:
        return multiple(*((member, item.first_offset, item.last_offset) for item in found))

    @rule(
        item=consumes(held),
        kinds=st.lists(st.integers(0, 4), min_size=1, max_size=30),
        cut=st.integers(0, 3),
        is_single=st.booleans(),
        thief=st.none() | MEMBERS,
    )
    def acknowledge(
        self, item: Any, kinds: list[int], cut: int, is_single: bool, thief: str | None
    ) -> None:
        member, first, last = item
        first = min(last, first + cut)
        size = last - first + 1
        types = kinds[:1] if is_single else (kinds * size)[:size]
        sender = thief or member
        window = self.window
        relevant = range(max(first, window.start_offset), last + 1)
        is_held = all(self.owners.get(at, ("", 0))[0] == sender for at in relevant)
        pending = {at for _, offsets in self.pending for at in offsets}
        is_valid = is_held and not pending & set(relevant)
        if not relevant:
            is_valid = True
        try:
            changes = window.acknowledge(
                sender, [Acknowledgement(first, last, types)], self.now + LOCK_S
            )
        except AcknowledgementRefused:
            assert not is_valid
            return
        assert is_valid, f"{sender} acknowledged {first} to {last}"
        touched = set[int]()
        for at in relevant:
            kind: int = types[0] if len(types) == 1 else types[at - first]
            if kind == RENEW:
                self.owners[at] = (sender, self.now + LOCK_S)
            else:
                touched.add(at)
        assert touched == {at for span in changes.spans for at in range(span.first, span.end)}
        if changes:
            self.pending.append((changes, touched))

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        changes = self.window.release(member)
        offsets = {at for span in changes.spans for at in range(span.first, span.end)}
        pending = {at for _, others in self.pending for at in others}
        assert offsets == {
            at for at, (owner, _) in self.owners.items() if owner == member and at not in pending
        }
        if changes:
            self.pending.append((changes, offsets))

    @rule(seconds=st.sampled_from([1.0, 5.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        changes = self.window.expire(self.now)
        offsets = {at for span in changes.spans for at in range(span.first, span.end)}
        pending = {at for _, others in self.pending for at in others}
        assert offsets == {
            at
            for at, (_, deadline) in self.owners.items()
            if deadline <= self.now and at not in pending
        }
        if changes:
            self.pending.append((changes, offsets))

    @precondition(lambda self: self.pending)
    @rule(outcome=st.sampled_from(["written", "written", "failed", "unknown"]))
    def write(self, outcome: str) -> None:
        window, pending = self.window, self.pending
        draft = window.draft([changes for changes, _ in pending])
        if outcome != "failed":
            self.stored.write(draft.start_offset, draft.batches)
        is_written = outcome == "written"
        for changes, offsets in pending:
            targets = {
                at: (span.target, span.count)
                for span in changes.spans
                for at in range(span.first, span.end)
            }
            self.given_up |= {at for at, (state, _) in targets.items() if state != AVAILABLE}
            window.settle(changes, is_written=is_written)
            for at in offsets & set(targets):
                if is_written or changes.is_final:
                    self.owners.pop(at, None)
                    state, count = targets[at]
                    if state == AVAILABLE:
                        self.deliveries[at] = count
                    elif is_written:
                        self.settled.add(at)
        self.pending = []
        if is_written:
            assert draft.start_offset <= window.start_offset
            done = sum(
                span.end - max(span.first, draft.start_offset)
                for span in window.spans()
                if span.state in (ACKNOWLEDGED, ARCHIVED) and span.first >= draft.start_offset
            )
            assert done <= draft.complete_count + _size_of_holes(window)

    @precondition(lambda self: not self.pending)
    @rule()
    def fail_over(self) -> None:
        """Load the stored state, as a new leader does."""
        self.window = ShareWindow(self.stored.start_offset, LIMITS, self.stored.batches())
        self.window.trim(self.log_start)
        self.owners = {}
        self.deliveries = {at: count for at, (count, _) in self.stored.states.items()}

    @rule(steps=st.integers(1, 6))
    def lose_start(self, steps: int) -> None:
        self.log_start = min(self.log_start + steps, self.batches[-1].end)
        self.window.trim(self.log_start)
        self.owners = {at: owner for at, owner in self.owners.items() if at >= self.log_start}
        self.pending = [
            (changes, {at for at in offsets if at >= self.log_start})
            for changes, offsets in self.pending
        ]

    @invariant()
    def is_consistent(self) -> None:
        if not hasattr(self, "window"):
            return
        self.window.check_invariants()
        locked = {
            at: span.member_id
            for span in self.window.spans()
            if span.state == ACQUIRED
            for at in range(span.first, span.end)
        }
        assert locked == {at: owner for at, (owner, _) in self.owners.items()}
        available = {
            at
            for span in self.window.spans()
            if span.state == AVAILABLE
            for at in range(span.first, span.end)
        }
        assert not available & self.settled
        real = {at for item in self.batches for at in range(*item) if at >= self.log_start}
        done = set(range(self.window.start_offset)) | {
            at for span in self.window.spans() if span.is_done for at in range(span.first, span.end)
        }
        assert not (done & real) - self.given_up, "records are never delivered"
        lost = self.settled & set(range(self.window.end_offset, self.batches[-1].end))
        assert not lost, f"{lost} will be delivered again"


def _size(item: Bounds) -> int:
    return item.end - item.base


def _size_of_holes(window: ShareWindow) -> int:
    return sum(span.end - span.first for span in window.spans() if span.state == ARCHIVED)


TestShareWindow = WindowMachine.TestCase
TestShareWindow.settings = settings(max_examples=100, stateful_step_count=80, deadline=None)
