"""Check tables on terminals of several widths."""

import sys

import pytest

from penstock.deploy.output import print_table

COLUMNS = ("topic", "partition", "leader", "size in the store")
ROWS = [("a-topic-whose-name-is-long", 0, 1, "1.5 GiB")]


@pytest.mark.parametrize(
    ("width", "hidden"),
    [
        (160, ""),
        (60, ""),
        (40, "size in the store"),
        (30, "leader, size in the store"),
    ],
)
def test_a_narrow_terminal_gets_the_first_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, hidden: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table("", COLUMNS, ROWS)
    shown = " ".join(capsys.readouterr().out.split())
    assert ("too narrow for:" in shown) == bool(hidden)
    assert f"too narrow for: {hidden}; --output json prints all" in shown or not hidden


def test_an_empty_table_states_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", COLUMNS, [])
    assert "(nothing)" in capsys.readouterr().out
