"""Compare rates and token buckets with a literal implementation of Kafka's arithmetic."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.quotas.rates import Rate, Window
from penstock.controller.active.mutation_quotas import TokenBucket
from penstock.controller.metadata.quota_scopes import (
    ABSENT,
    DEFAULT,
    Scope,
    entity_of,
    resolve,
    scope_of,
)


@dataclass
class Sample:
    start_ms: int
    last_ms: int
    value: float = 0.0


@dataclass
class KafkaRate:
    """Kafka's `Rate` over a `WindowedSum`.

    record: when the current sample is as old as a window, the next of the `samples + 1` samples in
    a ring starts and replaces the oldest. measure: samples whose last value is `samples` windows
    old are reset and start now; the sum of all samples is divided by the time since the oldest one
    started, extended to at least `samples - 1` whole windows. throttle: (rate - bound) / bound,
    multiplied by that time.
    """

    window: Window
    now_ms: int
    current: int = 0
    samples: list[Sample] = field(default_factory=list[Sample])

    def __post_init__(self) -> None:
        self.samples.append(Sample(self.now_ms, self.now_ms))

    def record(self, value: float, now_ms: int) -> None:
        if now_ms - self.samples[self.current].start_ms >= self.window.size_ms:
            self.current = (self.current + 1) % (self.window.samples + 1)
            if self.current == len(self.samples):
                self.samples.append(Sample(now_ms, now_ms))
            self.samples[self.current] = Sample(now_ms, now_ms)
        sample = self.samples[self.current]
        sample.value += value
        sample.last_ms = now_ms

    def elapsed_ms(self, now_ms: int) -> int:
        for at, sample in enumerate(self.samples):
            if now_ms - sample.last_ms >= self.window.samples * self.window.size_ms:
                self.samples[at] = Sample(now_ms, now_ms)
        elapsed = now_ms - min(sample.start_ms for sample in self.samples)
        whole = elapsed // self.window.size_ms
        if whole < self.window.samples - 1:
            elapsed += (self.window.samples - 1 - whole) * self.window.size_ms
        return max(elapsed, 1)

    def measure(self, now_ms: int) -> float:
        elapsed = self.elapsed_ms(now_ms)
        return sum(sample.value for sample in self.samples) / (elapsed / 1_000)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        rate = self.measure(now_ms)
        return 0 if rate <= bound else round((rate - bound) / bound * self.elapsed_ms(now_ms))


WINDOWS = st.builds(
    Window, samples=st.integers(1, 12), size_ms=st.sampled_from([1, 100, 1_000, 3_000])
)
GAPS_MS = st.one_of(st.integers(0, 50), st.integers(0, 2_000), st.integers(0, 40_000))
STEPS = st.lists(st.tuples(GAPS_MS, st.integers(-1_000, 100_000), st.booleans()), max_size=60)


@settings(max_examples=300)
@given(WINDOWS, st.integers(0, 10**9), STEPS, st.integers(1, 10_000))
def test_rates_match_kafka(
    window: Window, now_ms: int, steps: list[tuple[int, int, bool]], bound: int
) -> None:
    rate, kafka = Rate(window, now_ms), KafkaRate(window, now_ms)
    for gap_ms, value, is_measured in steps:
        now_ms += gap_ms
        rate.record(value, now_ms)
        kafka.record(value, now_ms)
        if is_measured:
            assert abs(rate.measure(now_ms) - kafka.measure(now_ms)) < 1e-6
            assert abs(rate.throttle_ms(bound, now_ms) - kafka.throttle_ms(bound, now_ms)) <= 1


def test_the_first_burst_may_use_the_whole_window() -> None:
    """With Kafka's defaults, a client can use ten seconds of its quota at once; then it is
    throttled until its rate falls.
    """
    rate = Rate(Window(), 0)
    rate.record(10_000, 0)
    assert rate.throttle_ms(1_000, 0) == 0
    rate.record(1_000, 0)
    assert rate.measure(0) == 1_100
    assert rate.throttle_ms(1_000, 0) == 1_000


def test_a_burst_counts_until_it_leaves_the_window() -> None:
    """Windows that have not passed yet count as empty, so the rate does not fall with time during
    the first ten seconds.
    """
    rate = Rate(Window(), 0)
    rate.record(15_000, 0)
    assert [rate.throttle_ms(1_000, at) for at in (0, 5_000, 10_000)] == [5_000] * 3
    assert rate.throttle_ms(1_000, 10_999) == 4_001
    assert rate.throttle_ms(1_000, 11_000) == 0


def test_the_throttle_time_of_a_tiny_quota_is_capped_at_the_int32_maximum() -> None:
    rate = Rate(Window(), 0)
    rate.record(1e12, 0)
    assert rate.throttle_ms(1e-6, 0) == 2**31 - 1


BOUNDS = st.floats(0.01, 1_000)


@given(WINDOWS, st.lists(st.tuples(GAPS_MS, st.integers(0, 500)), max_size=40), BOUNDS)
def test_token_buckets_match_kafka(
    window: Window, steps: list[tuple[int, int]], bound: float
) -> None:
    """It is full at first and gains `bound` tokens per second, up to the tokens of the whole
    window. The throttle time is the time until a negative balance is back at 0.
    """
    bucket, now_ms = TokenBucket(window.whole_ms), 10**9
    burst = bound * window.whole_ms / 1_000
    tokens = burst
    for gap_ms, count in steps:
        now_ms += gap_ms
        tokens = min(burst, tokens + bound * gap_ms / 1_000)
        assert abs(bucket.tokens(bound, now_ms) - tokens) < 1e-6
        bucket.take(count, bound, now_ms)
        tokens -= count
        wait_ms = 0 if tokens >= 0 else -tokens / bound * 1_000
        if wait_ms < 2**31 - 1:
            assert abs(bucket.throttle_ms(bound, now_ms) - wait_ms) <= 1


# --- precedence -----------------------------------------------------------------------------------

LEVELS: list[tuple[Scope, Scope]] = [
    (("u", "c"), ("u", "c")),
    (("u", DEFAULT), ("u", "c")),
    (("u", ABSENT), ("u", ABSENT)),
    ((DEFAULT, "c"), ("u", "c")),
    ((DEFAULT, DEFAULT), ("u", "c")),
    ((DEFAULT, ABSENT), ("u", ABSENT)),
    ((ABSENT, "c"), (ABSENT, "c")),
    ((ABSENT, DEFAULT), (ABSENT, "c")),
]
"""The precedence defined by KIP-55, with the clients that share each quota (Kafka's
metric tags).
"""
OTHERS: list[Scope] = [("v", "c"), ("u", "d"), ("v", ABSENT), (ABSENT, "d"), (DEFAULT, "d")]


@given(st.sets(st.sampled_from([scope for scope, _ in LEVELS])), st.sets(st.sampled_from(OTHERS)))
def test_the_most_specific_quota_applies(present: set[Scope], others: set[Scope]) -> None:
    quotas = {scope: float(at + 1) for at, (scope, _) in enumerate(LEVELS) if scope in present}
    quotas |= dict.fromkeys(others, 99.0)
    found = resolve(quotas.get, "u", "c")
    expected = [(shared_by, quotas[scope]) for scope, shared_by in LEVELS if scope in present]
    assert found == (expected[0] if expected else None)


def test_scopes_and_entities_map_to_each_other() -> None:
    for scope in [scope for scope, _ in LEVELS] + OTHERS:
        assert scope_of(entity_of(scope)) == scope
