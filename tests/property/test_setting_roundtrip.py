"""Check that a setting's value survives formatting and parsing, in the machine-readable and the
human-readable form, and that values outside the limits are rejected.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.base.settings import (
    Kind,
    Setting,
    SettingInvalid,
    parse,
    shown,
    text_of,
)

NUMBERS = st.sampled_from([Kind.INT, Kind.DURATION, Kind.BYTES])
WORDS = st.text(
    st.characters(categories=("L", "N"), include_characters=":/.-"), min_size=1, max_size=12
)


@given(NUMBERS, st.integers(-(2**40), 2**50))
def test_numbers_survive_formatting_and_parsing(kind: Kind, value: int) -> None:
    setting = Setting("x", kind)
    assert (
        parse(setting, text_of(setting, value))
        == parse(setting, shown(setting, value))
        == parse(setting, value)
        == value
    )


@given(st.lists(WORDS, max_size=5))
def test_lists_survive_formatting_and_parsing(parts: list[str]) -> None:
    setting = Setting("x", Kind.LIST)
    assert parse(setting, text_of(setting, tuple(parts))) == parse(setting, parts) == tuple(parts)


@given(st.booleans())
def test_booleans_survive_formatting_and_parsing(value: bool) -> None:
    setting = Setting("x", Kind.BOOL)
    assert parse(setting, text_of(setting, value)) is parse(setting, value) is value


@given(NUMBERS, st.integers(-50, 150))
def test_values_outside_the_limits_are_rejected(kind: Kind, value: int) -> None:
    setting = Setting("x", kind, 0, 100)
    if 0 <= value <= 100:
        assert parse(setting, value) == value
    else:
        with pytest.raises(SettingInvalid, match="0 to 100"):
            parse(setting, value)


@example(Kind.LIST, [","])
@given(
    st.sampled_from(list(Kind)),
    st.one_of(
        st.text(max_size=20),
        st.integers(),
        st.floats(),
        st.booleans(),
        st.none(),
        st.lists(st.text()),
    ),
)
def test_any_value_is_parsed_or_rejected(kind: Kind, value: object) -> None:
    setting = Setting("x", kind, 0, 1_000, choices=("a", "b"))
    try:
        found = parse(setting, value)
    except SettingInvalid:
        return
    assert parse(setting, text_of(setting, found)) == found


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Kind.BYTES, "8MiB", 8 << 20),
        (Kind.BYTES, "1.5 GiB", 3 << 29),
        (Kind.BYTES, "10MB", 10_000_000),
        (Kind.BYTES, "65_536", 65_536),
        (Kind.DURATION, "250", 250),
        (Kind.DURATION, "1.5s", 1_500),
        (Kind.DURATION, "7d", 604_800_000),
        (Kind.BOOL, "TRUE", True),
        (Kind.LIST, "a:1, b:2,", ("a:1", "b:2")),
    ],
)
def test_accepted_forms(kind: Kind, text: str, value: object) -> None:
    assert parse(Setting("x", kind), text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.BYTES, "8M"),
        (Kind.BYTES, "1.3B"),
        (Kind.DURATION, "5m"),
        (Kind.INT, "1s"),
        (Kind.INT, "1.5"),
        (Kind.INT, ""),
    ],
)
def test_ambiguous_forms_are_rejected(kind: Kind, text: str) -> None:
    with pytest.raises(SettingInvalid):
        parse(Setting("x", kind), text)
