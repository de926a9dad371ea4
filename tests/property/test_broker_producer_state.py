"""Compare producer state with a model that remembers every batch, and with the state after
replaying the log.
"""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.partition.producer_state import (
    SEQUENCES_COUNT,
    KnownBatch,
    ProducerSnapshot,
    ProducerState,
)
from penstock.protocol.error_codes import ErrorCode

START = SEQUENCES_COUNT - 6


class Model:
    """Remembers the epoch of each producer and every batch of that epoch, oldest first."""

    def __init__(self) -> None:
        self.producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}

    def check(self, pid, epoch, base, count):
        if pid not in self.producers:
            return None
        known_epoch, batches = self.producers[pid]
        if epoch < known_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > known_epoch:
            return None if base == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        last_base, last_count, _ = batches[-1]
        if base == (last_base + last_count) % SEQUENCES_COUNT:
            return None
        for known_base, known_count, offset in batches[-5:]:
            if (known_base, known_count) == (base, count):
                return offset
        written = {(b + i) % SEQUENCES_COUNT for b, c, _ in batches for i in range(c)}
        requested = {(base + i) % SEQUENCES_COUNT for i in range(count)}
        return (
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            if requested <= written
            else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )

    def record(self, pid, epoch, base, count, offset):
        known_epoch, batches = self.producers.get(pid, (epoch, []))
        if known_epoch != epoch:
            batches = []
        self.producers[pid] = (epoch, [*batches, (base, count, offset)])


attempts = st.lists(
    st.tuples(
        st.integers(0, 2),  # producer
        st.integers(0, 2),  # epoch
        st.sampled_from(["next", "again", "any"]),
        st.integers(-8, 12).map(lambda at: (START + at) % SEQUENCES_COUNT),
        st.integers(1, 4),
    ),
    max_size=60,
)


def run(script):
    state, model, log = ProducerState(), Model(), []
    offset = 0
    for now, (pid, epoch, kind, base, count) in enumerate(script):
        if kind != "any" and pid in model.producers:
            epoch, batches = model.producers[pid]
            last_base, last_count, _ = batches[-1]
            base = (last_base + last_count) % SEQUENCES_COUNT
            if kind == "again":
                base, count, _ = batches[len(batches) * count // 5]
        expected = model.check(pid, epoch, base, count)
        found = state.check(pid, epoch, base, count)
        if isinstance(found, KnownBatch):
            assert found.base_offset == expected
            assert not isinstance(expected, ErrorCode)
        else:
            assert found is expected
        if found is None:
            state.record(
                pid, epoch, base, count, base_offset=offset, end_offset=offset + count, now_ms=now
            )
            model.record(pid, epoch, base, count, offset)
            log.append((pid, epoch, base, count, offset, now))
            offset += count
    return state, log, offset


@given(attempts)
def test_responses_match_a_model_that_remembers_every_batch(script):
    run(script)


@given(attempts, st.integers(0, 60))
def test_a_snapshot_and_the_rest_of_the_log_restore_the_live_state(script, cut):
    live, log, end = run(script)
    restored = ProducerState()
    for entry in log[:cut]:
        _replay(restored, entry)
    stored = msgspec.msgpack.encode(restored.snapshot(0))
    restored = ProducerState()
    restored.restore(msgspec.msgpack.decode(stored, type=ProducerSnapshot))
    for entry in log[cut:]:
        _replay(restored, entry)
    assert msgspec.msgpack.encode(restored.snapshot(end)) == msgspec.msgpack.encode(
        live.snapshot(end)
    )


def _replay(state, entry):
    pid, epoch, base, count, offset, now = entry
    state.record(pid, epoch, base, count, base_offset=offset, end_offset=offset + count, now_ms=now)
