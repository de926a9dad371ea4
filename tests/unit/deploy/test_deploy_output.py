"""Tables on terminals of several widths, and numbers in sentences."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.deploy.output import counted, iso_time, print_table
from penstock.deploy.sql.forms import distinct_names
from tests.support.cli import run_here

DEPLOY = Path(__file__).parents[3] / "deploy"
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


def test_a_time_is_at_most_in_the_year_9999() -> None:
    """Topics may be kept forever after their deletion."""
    assert iso_time(1_769_860_800_123) == "2026-01-31T12:00:00.123Z"
    assert iso_time(2**63 - 1 + 1_769_860_800_123) == "9999-12-31T23:59:59.000Z"
    assert iso_time(-(2**63)) == "0001-01-01T00:00:00.000Z"


def test_members_of_an_object_get_different_names() -> None:
    assert distinct_names(["a", "a", "b", "a_1", "a"]) == ["a", "a_2", "b", "a_1", "a_3"]


def test_an_empty_table_prints_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", COLUMNS, [])
    assert "(nothing)" in capsys.readouterr().out


@pytest.mark.parametrize("width", range(30, 90, 5))
def test_addresses_are_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    columns = ("node", "epoch", "state", "address", "rack", "leads")
    print_table("", columns, [(0, 1, "alive", "127.0.0.1:19092", "-", 12)])
    shown = capsys.readouterr().out
    assert "127.0.0.1:19092" in shown or "too narrow for: address" in shown


def test_small_numbers_are_printed_without_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", ("MB/s",), [(4e-06,), (-4e-06,), (0.0123,), (0.0,), (12.345,)])
    shown = capsys.readouterr().out.split()
    assert [text for text in shown if any(letter.isdigit() for letter in text)] == [
        *("<0.001", ">-0.001", "0.0123", "0.0", "12.3")
    ]


def test_the_help_of_dev_fits_into_a_terminal() -> None:
    shown = run_here("dev", "--help", COLUMNS="80").stdout
    assert "--topics" in shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("number", "plural", "shown"),
    [
        (0, "addresses", "0 addresses"),
        (1, "", "1 address"),
        (1, "addresses", "1 address"),
        (2_000, "addresses", "2,000 addresses"),
    ],
)
def test_counts_use_singular_and_plural(number: int, plural: str, shown: str) -> None:
    assert counted(number, "address", plural) == shown


NOUNS = (
    "ACLs|addresses|batches|brokers|configs|controllers|files|groups|members|messages|moves|objects"
    "|offsets|partitions|ranges|records|rows|snapshots|tokens|topics|users|versions|WALs"
)
PRINTING = ("admin", "cli", "demo", "local", "mirror", "records", "sql")


def uncounted(file: Path) -> Iterator[str]:
    """Yield the places where a number that may be 1 precedes a plural noun. Constants
    are never 1.
    """
    for text in ast.walk(ast.parse(file.read_text())):
        if not isinstance(text, ast.JoinedStr):
            continue
        for number, after in zip(text.values, text.values[1:], strict=False):
            if (
                isinstance(number, ast.FormattedValue)
                and isinstance(after, ast.Constant)
                and re.match(rf" (?:[a-z]+ )?(?:{NOUNS})\b(?!/)", str(after.value))
                and is_number(number)
            ):
                yield f"{file.name}:{text.lineno}: {ast.unparse(number.value)}{after.value}"


def is_number(value: ast.FormattedValue) -> bool:
    code = ast.unparse(value.value)
    is_formatted = value.format_spec is not None or code.startswith("len(")
    return (is_formatted or code.endswith(("count", "_total"))) and not code.isupper()


def test_sentences_use_the_helper_for_counts() -> None:
    files = [file for name in PRINTING for file in (DEPLOY / name).rglob("*.py")]
    assert files
    assert [place for file in files for place in uncounted(file)] == []


def test_a_full_disk_is_reported_without_a_traceback() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            (sys.executable, "-m", "penstock", "completion", "bash"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-"])
def test_output_to_a_closed_stream_is_discarded(tmp_path: Path, closed: str) -> None:
    """Its number is not given to a file or socket, which would receive the output."""
    command = f"{shlex.quote(sys.executable)} -m penstock profile list --json {closed}"
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        ("sh", "-c", command), env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_names_that_the_encoding_lacks_are_escaped() -> None:
    given = ("--store", "memory:", "--set", "super.users=User:\u00fc\U0001f600")
    done = subprocess.run(
        [sys.executable, "-m", "penstock.deploy.cli", "config", "show", "--json", *given],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["super.users"]["value"] == "User:\u00fc\U0001f600"
