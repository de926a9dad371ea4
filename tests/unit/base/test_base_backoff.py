"""Pauses between retries grow, vary and are bounded."""

from random import Random

from penstock.base.backoff import Backoff

FIRST_MS, MAX_MS = 50, 1_000


def test_pauses_double_up_to_the_maximum() -> None:
    backoffs = [Backoff(FIRST_MS, MAX_MS, Random(seed)) for seed in range(500)]
    for nominal_ms in (50, 100, 200, 400, 800, 1_000, 1_000):
        pauses_s = [backoff.next_s() for backoff in backoffs]
        assert nominal_ms / 2_000 <= min(pauses_s) < 0.55 * nominal_ms / 1_000
        assert 0.95 * nominal_ms / 1_000 < max(pauses_s) <= nominal_ms / 1_000
    assert {backoff.attempt_count for backoff in backoffs} == {7}
