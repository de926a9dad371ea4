"""Regular expressions over topics that are created and deleted, matched in slices."""

import random

import pytest

from penstock.base.regular_expressions import INSTRUCTIONS_MAX, RegexInvalid, match_steps, matching
from penstock.broker.groups.common import matched_topics
from penstock.broker.groups.common.matched_topics import (
    EXPRESSIONS_MAX,
    STEPS_PER_SLICE,
    MatchedTopics,
)


def test_results_follow_created_and_deleted_topics() -> None:
    rng = random.Random(7)
    names: dict[str, None] = {}
    matches = MatchedTopics(names.keys())
    expressions = ["a.*", ".*[02468]", "b1|c2", "nothing"]
    for _ in range(2_000):
        name = rng.choice("abc") + str(rng.randrange(30))
        if name in names:
            del names[name]
        else:
            names[name] = None
        matches.changed(name)
        if rng.random() < 0.3:
            matches.work(rng.sample(expressions, 2))
        if rng.random() < 0.3:
            expression = rng.choice(expressions)
            assert matches.of(expression) == matching(expression, names)


def test_the_work_of_one_slice_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict.fromkeys(f"orders-{number}" for number in range(5_000))
    matched = steps = 0
    most = match_steps("orders-1.*", "orders-1000")

    def counted(expression: str, some: list[str]) -> frozenset[str]:
        nonlocal matched, steps
        matched += len(some)
        steps += sum(match_steps(expression, name) for name in some)
        return matching(expression, some)

    monkeypatch.setattr(matched_topics, "matching", counted)
    matches = MatchedTopics(names.keys())
    slices = 0
    while matches.work(["orders-1.*", "orders-2.*"]):
        slices += 1
        assert steps <= (STEPS_PER_SLICE + most) * slices
    assert 5 < slices <= matches.slices_max(2)
    assert matches.of("orders-1.*") == {name for name in names if name.startswith("orders-1")}
    assert matched == 2 * len(names), "each name once"
    names["orders-1x"] = None
    matches.changed("orders-1x")
    assert "orders-1x" in matches.of("orders-1.*")
    assert matched == 2 * len(names) - 1, "the new name alone, by one expression"


def test_the_memory_of_results_is_limited() -> None:
    names = dict.fromkeys(["a"])
    matches = MatchedTopics(names.keys())
    for number in range(EXPRESSIONS_MAX + 50):
        matches.of(f"a{number}")
    for _ in range(1_050):
        matches.changed("a")
    assert matches.of("a") == {"a"}
    assert matches.of("a1") == frozenset()


def test_an_invalid_expression_is_rejected_even_without_topics() -> None:
    matches = MatchedTopics([])
    with pytest.raises(RegexInvalid):
        matches.of("(")
    with pytest.raises(RegexInvalid):
        matches.work(["a", "("])


def test_an_expensive_expression_matches_few_names_per_slice() -> None:
    """Each name takes up to 5 ms, a thousand times as long as with an ordinary expression."""
    names = dict.fromkeys("ab" * 100 + str(number) for number in range(50))
    matches, slices = MatchedTopics(names.keys()), 1
    costly = "(?:a?b?)" * 500
    assert 1_000 < match_steps(costly, "") < INSTRUCTIONS_MAX
    while matches.work([costly]):
        slices += 1
    assert slices >= len(names) / 2
