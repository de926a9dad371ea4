"""Compare the open and aborted transactions and the last stable offset with a model that scans
the whole log, for the leader and for a reader of the txn stream.
"""

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import Millis, Offset, StreamEpoch
from penstock.broker.partition.transactions import Transactions
from penstock.protocol.batch.control import Marker
from penstock.protocol.batch.header import iter_headers
from penstock.stream.format.transaction_log import (
    AbortedWithin,
    TransactionEventAt,
    decode_events,
    encode_event,
)

steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "plain", "commit", "abort"]),
        st.integers(0, 3),  # producer
        st.integers(1, 3),  # records
        st.booleans(),  # whether everything appended so far becomes durable
    ),
    max_size=40,
)


class Model:
    """Holds the log as a list of batches: (kind, producer, first offset, end offset)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int, int]] = []

    @property
    def end(self) -> int:
        return self.log[-1][3] if self.log else 0

    def transactions(self, end: int) -> list[tuple[int, int, int | None, bool]]:
        """Return (producer, first offset, offset of the marker or None, aborted) of each
        transaction that began below `end`, as seen by a reader up to `end`.
        """
        found, opened = [], {}
        for kind, producer, first, stop in self.log:
            if stop > end:
                break
            if kind == "write":
                opened.setdefault(producer, first)
            elif kind != "plain" and producer in opened:
                found.append((producer, opened.pop(producer), first, kind == "abort"))
        return found + [(producer, first, None, False) for producer, first in opened.items()]

    def stable(self, end: int) -> int:
        return min(
            [end, *(first for _, first, marker, _ in self.transactions(end) if marker is None)]
        )

    def aborted(self, low: int, high: int) -> list[tuple[int, int, int]]:
        found = [
            (producer, first, marker)
            for producer, first, marker, is_aborted in self.transactions(self.end)
            if is_aborted
        ]
        return sorted(
            [item for item in found if item[2] >= low and item[1] < high], key=lambda item: item[1]
        )


def play(script, aborted_count_max):
    model, live, stream, durable = (
        Model(),
        Transactions(Offset(0), aborted_count_max),
        bytearray(),
        0,
    )
    stream_end = 0
    for kind, producer, count, confirmed in script:
        base = Offset(model.end)
        if kind in {"write", "plain"}:
            end = Offset(base + count)
            event = live.begin_event(producer, base) if kind == "write" else None
            if kind == "write":
                live.begin(producer, base)
        else:
            end = Offset(base + 1)
            marker = Marker(producer, 0, kind == "commit", 0)
            event = live.end_event(marker, base)
            live.end(marker, base)
        model.log.append((kind, producer, base, end))
        if event is not None:
            stream += encode_event(event, Offset(stream_end), end, StreamEpoch(0), Millis(0))
            stream_end = end
        live.check_invariants()
        if confirmed:
            durable = model.end
            live.confirm(Offset(durable))
        assert live.last_stable(Offset(durable)) == model.stable(durable)
    return model, live, stream


def read(stream, offset) -> list[TransactionEventAt]:
    """Return the events from the batch that contains `offset` to the end, as a store would."""
    found: list[TransactionEventAt] = []
    for at, header in iter_headers(stream):
        if header.next_offset > offset:
            found += decode_events(memoryview(stream)[at:])
    return found


@given(steps, st.integers(0, 3), st.data())
def test_the_leader_and_a_reader_agree_with_the_model(script, aborted_count_max, data):
    model, live, stream = play(script, aborted_count_max)
    for _, _, _, end in model.log:
        last = [found for found in read(stream, 0) if found.offset < end]
        unstable = last[-1].event.first_unstable_offset if last else -1
        assert (end if unstable < 0 else unstable) == model.stable(end)
    high = data.draw(st.integers(0, model.stable(model.end)))
    low = data.draw(st.integers(0, high))
    within = AbortedWithin(low, high)
    within.take(read(stream, low))
    assert (
        within.by_first_offset() == model.aborted(low, high)
        if low < high
        else within.by_first_offset() == []
    )
    known = live.aborted_within(Offset(low), Offset(high))
    assert known is None or known == model.aborted(low, high)
    assert known is not None or len(model.aborted(low, model.end)) > aborted_count_max


@given(steps, st.integers(0, 40), st.data())
def test_events_after_the_deciding_event_are_irrelevant(script, more, data):
    model, _, stream = play(script, 100)
    high = data.draw(st.integers(0, model.stable(model.end)))
    events = read(stream, 0)
    for number, found in enumerate(events):
        if found.decides(high):
            assert all(
                later.event.aborted is None or later.event.aborted.first_offset >= high
                for later in events[number + 1 :]
            )


def test_batches_without_records_fill_a_long_gap_before_an_event():
    live = Transactions(Offset(0))
    event = live.begin_event(7, Offset(5 << 31))
    assert event is not None
    payload = encode_event(event, Offset(3), Offset((5 << 31) + 1), StreamEpoch(2), Millis(9))
    headers = [header for _, header in iter_headers(payload)]
    assert len(headers) == 6
    assert [header.base_offset for header in headers[1:]] == [
        header.next_offset for header in headers[:-1]
    ]
    assert (headers[0].base_offset, headers[-1].next_offset) == (3, (5 << 31) + 1)
    assert read(payload, 5 << 31) == [(5 << 31, event)]
