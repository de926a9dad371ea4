"""Regular expressions over topics that come and go, matched in slices."""

import random

import pytest

from base.regular_expressions import RegexInvalid, matching
from broker.groups.consumer import matched_topics
from broker.groups.consumer.matched_topics import EXPRESSIONS_MAX, MatchedTopics

SLICE = matched_topics.NAMES_PER_SLICE_COUNT


def test_results_follow_the_topics() -> None:
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
    names = dict.fromkeys(f"orders-{number}" for number in range(5 * SLICE))
    matched = 0

    def counted(expression: str, some: list[str]) -> frozenset[str]:
        nonlocal matched
        matched += len(some)
        return matching(expression, some)

    monkeypatch.setattr(matched_topics, "matching", counted)
    matches = MatchedTopics(names.keys())
    slices = 0
    while matches.work(["orders-1.*", "orders-2.*"]):
        slices += 1
        assert matched <= SLICE * slices
    assert slices <= matches.slices_max(2)
    assert matches.of("orders-1.*") == {name for name in names if name.startswith("orders-1")}
    assert matched == 2 * len(names), "each name once"
    names["orders-1x"] = None
    matches.changed("orders-1x")
    assert "orders-1x" in matches.of("orders-1.*")
    assert matched == 2 * len(names) - 1, "the new name alone, by one expression"


def test_memory_is_bounded() -> None:
    names = dict.fromkeys(["a"])
    matches = MatchedTopics(names.keys())
    for number in range(EXPRESSIONS_MAX + 50):
        matches.of(f"a{number}")
    for _ in range(SLICE + 50):
        matches.changed("a")
    assert matches.of("a") == {"a"}
    assert matches.of("a1") == frozenset()


def test_a_bad_expression_is_refused_without_topics() -> None:
    matches = MatchedTopics([])
    with pytest.raises(RegexInvalid):
        matches.of("(")
    with pytest.raises(RegexInvalid):
        matches.work(["a", "("])
