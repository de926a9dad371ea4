"""Check tables on terminals of several widths."""

import sys

import pytest

from penstock.deploy.output import print_table
from tests.support.cli import run_here

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


@pytest.mark.parametrize("width", range(30, 90, 5))
def test_addresses_are_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    columns = ("node", "epoch", "state", "address", "rack", "leads")
    print_table("", columns, [(0, 1, "alive", "127.0.0.1:19092", "-", 12)])
    shown = capsys.readouterr().out
    assert "127.0.0.1:19092" in shown or "too narrow for: address" in shown


def test_small_numbers_have_no_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", ("MB/s",), [(4e-06,), (-4e-06,), (0.0123,), (0.0,), (12.345,)])
    shown = capsys.readouterr().out.split()
    assert [text for text in shown if any(letter.isdigit() for letter in text)] == [
        *("<0.001", ">-0.001", "0.0123", "0.0", "12.3")
    ]


def test_the_help_of_dev_fits_a_terminal() -> None:
    shown = run_here("dev", "--help", COLUMNS="80").stdout
    assert "--topics" in shown
    assert "…" not in shown
