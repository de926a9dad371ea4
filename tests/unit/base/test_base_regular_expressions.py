"""Limits for regular expressions of clients."""

import pytest

from penstock.base.regular_expressions import (
    CHARACTERS_MAX,
    INSTRUCTIONS_MAX,
    RegexInvalid,
    check_regex,
    compiled,
    match_steps,
)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a" * (CHARACTERS_MAX + 1), "it has 4097 characters, at most 4096 are allowed"),
        ("(?:a?b?){1000}|" * 2, "takes"),
        (r"(?i)[\pL]{50}", "at most 4096 are allowed: repeat less"),
        (r"(\pL{1,100}){1,10}", "pattern too large"),
        ("(((a{100}){100}){100}){100}", "invalid repetition size"),
    ],
)
def test_expensive_expressions_are_rejected(expression: str, reason: str) -> None:
    with pytest.raises(RegexInvalid, match=reason):
        check_regex(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "flights-.*",
        r"(eu|us)\.(orders|payments)\..*",
        "[a-z]{1000}",
        r"\pL+[0-9]{1,4}",
        "|".join(f"topic-{number}" for number in range(300)),
    ],
)
def test_common_expressions_are_accepted(expression: str) -> None:
    assert match_steps(expression, "") <= INSTRUCTIONS_MAX


def test_capture_groups_of_clients_use_no_memory() -> None:
    """Match objects with captured groups used 1 GB for 8,000 groups."""
    assert compiled("(a?)" * 1_000).fullmatch("a" * 1_000) is not None
    match = compiled("(a)(b)", has_groups=True).fullmatch("ab")
    assert match is not None
    assert match.groups() == ("a", "b")
    match = compiled("(a)(b)").fullmatch("ab")
    assert match is not None
    assert match.groups() == ()
