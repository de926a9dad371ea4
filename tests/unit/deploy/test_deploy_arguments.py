"""Invalid arguments and variables are reported before a command does anything."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.deploy.admin.reassign.plan import parse_reassignment
from penstock.deploy.admin.topic_plan import read_wanted
from penstock.deploy.cli.app import app
from penstock.deploy.cli.lazy import commands_of
from penstock.deploy.errors import UsageError
from penstock.deploy.local.seed import parse_seed
from penstock.deploy.records.formats import BadRecord, TextCodec
from penstock.deploy.records.lines import LineReader
from tests.support.cli import run_here

ODD = os.fsdecode(b"x\xff")


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("the name of --header", ("produce", "t", "--value", "v", "--header", f"{ODD}=v")),
        ("--transactional-id", ("produce", "t", "--value", "v", "--transactional-id", ODD)),
        ("TOPIC", ("produce", ODD, "--value", "v")),
        ("--group", ("consume", "t", "--group", ODD)),
        ("TOPIC", ("topics", "create", ODD)),
        ("--config/-c", ("topics", "create", "t", "-c", f"cleanup.policy={ODD}")),
        ("GROUP", ("groups", "describe", ODD)),
        ("--principal", ("acls", "add", "--principal", f"User:{ODD}", "--topic", "t")),
        ("--profile", ("--profile", ODD, "topics", "list")),
        ("SQL", ("sql", f"SELECT '{ODD}'")),
    ],
)
def test_arguments_that_are_not_utf_8_are_reported(named: str, arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=rf"^{re.escape(named)} is not UTF-8: '.*x\\xff"):
        raise CliRunner().invoke(app, list(arguments)).exception or AssertionError


def test_variables_that_are_not_utf_8_are_reported() -> None:
    found = CliRunner().invoke(app, ["topics", "list"], env={"PENSTOCK_BOOTSTRAP": ODD})
    with pytest.raises(UsageError, match=r"--bootstrap.* is not UTF-8: 'x\\xff'"):
        raise found.exception or AssertionError


def test_paths_may_contain_any_bytes(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        app, ["produce", "t", "-b", "127.0.0.1:1", "--from-file", str(tmp_path / ODD)]
    )
    assert not isinstance(found.exception, UsageError)  # there is no broker


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("groups", "list", "--state", "foo"), "--state 'foo': use one of Empty, .*, Stable, Dead"),
        (("groups", "list", "--type", "x"), "--type 'x': use one of classic, consumer, share, "),
        (("console", "--controller", "127.0.0.1:1", "--fd", "-1"), "--fd -1 is not an open socket"),
        (("console", "--controller", "127.0.0.1:1", "--fd", "77777"), "--fd 77777 is not an open"),
    ],
)
def test_unknown_values_are_reported(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError, match=f"^{expected}"):
        raise CliRunner().invoke(app, [*arguments, "-b", "127.0.0.1:1"]).exception or AssertionError


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("compact", "t", "--max-gib=-1"), "range 0.0<=x<=1048576"),
        (("compact", "t", "--max-gib=inf"), "range 0.0<=x<=1048576"),
        (("compact", "t", "--max-gib=nan"), "0, or 1e-09 to 1e+09"),
        (("compact", "t", "--key-map-mib=0"), "range 1<=x<=65536"),
        (("compact", "t", "--target-mib=0"), "range 1<=x<=1024"),
        (("consume", "t", "--max-messages=0"), "range x>=1"),
        (("consume", "t", f"--max-messages={2**63}"), "at most 9223372036854775807"),
        (("consume", "t", "--rate=1e-320"), "0, or 1e-09 to 1e+09"),
        (("consume", "t", "--timeout=-1"), "range x>=0.0"),
        (("produce", "t", "--value=v", "--rate=1e-320"), "0, or 1e-09 to 1e+09"),
        (("mirror", "finish", "--from=127.0.0.1:1", "--timeout=-1"), "range x>=0.0"),
        (("mirror", "finish", "--from=127.0.0.1:1", "--interval=0"), "range 0.1<=x<=3600"),
        (("table", "maintain", "t", "--snapshot-hours=-inf"), "0, or 1e-09 to 1e+09"),
        (("quotas", "set", "--user=a", "producer_byte_rate=nan"), "is not a quota"),
    ],
)
def test_numbers_out_of_range_are_reported(arguments: tuple[str, ...], allowed: str) -> None:
    done = run_here(*arguments)
    assert (done.returncode, allowed in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("consume", "t", "--on-error=x"), "'raise', 'skip'"),
        (("consume", "t", "--output=csv"), "'text', 'json'"),
        (("consume", "t", "--isolation=x"), "'read_committed', 'read_uncommitted'"),
        (("produce", "t", "--acks=2"), "'all', '1', '0'"),
        (("compact", "t", "--engine=flink"), "'local', 'spark'"),
        (("table", "run", "--on-error=x"), "'raise', 'skip', 'dead-letter'"),
    ],
)
def test_allowed_values_are_listed(arguments: tuple[str, ...], allowed: str) -> None:
    done = run_here(*arguments, COLUMNS="120")
    assert (done.returncode, f"is not one of {allowed}." in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("number", ["nan", "inf", "1e-320", "1e300"])
def test_no_option_accepts_a_number_that_python_cannot_convert_or_wait_for(number: str) -> None:
    accepted: list[str] = []
    seen = 0

    def check(command: Any, path: str) -> None:
        nonlocal seen
        for name, each in getattr(command, "commands", {}).items():
            check(each, f"{path} {name}")
        for parameter in command.params:
            if parameter.type.name.startswith("float"):
                seen += 1
                given = [parameter.opts[0], number]
                with suppress(UsageError):
                    context = command.make_context(path, given, resilient_parsing=True)
                    if context.params[parameter.name] is not None:  # None: out of its own range
                        accepted.append(f"{path} {given}")

    for name, command in commands_of(typer.main.get_command(app)).items():
        check(command, name)
    assert (accepted, seen > 15) == ([], True)


@pytest.mark.parametrize("command", ["remove", "transfer"])
def test_controller_ids_out_of_range_are_reported(command: str) -> None:
    found = CliRunner().invoke(app, ["quorum", command, "9" * 20, "--controller=127.0.0.1:1"])
    assert (found.exit_code, "is not in the range" in found.output) == (2, True)


def test_deeply_nested_json_is_reported() -> None:
    text = '{"value": ' + "[" * 100_000
    reader = LineReader(TextCodec(), TextCodec(), is_json=True)
    with pytest.raises(BadRecord, match="line 1: it is not a record"):
        list(reader.records([text.encode()]))
    with pytest.raises(UsageError, match=r"seed\.jsonl, line 1: not JSON"):
        list(parse_seed([text.encode()], {"orders": 1}, "seed.jsonl"))
    with pytest.raises(UsageError, match=r"plan\.json: "):
        read_wanted(text.encode(), "plan.json")
    with pytest.raises(UsageError, match="the file is invalid"):
        parse_reassignment(text)


@pytest.mark.parametrize(
    "command",
    [
        ("doctor",),
        ("sql", "SELECT * FROM orders"),
        ("compact", "orders", "--dry-run"),
        ("consume", "orders", "--snapshot", "nightly"),
        ("table", "status"),
        ("table", "sync", "orders", "--warehouse", "w"),
        ("table", "run", "--warehouse", "w"),
        ("console", "--bootstrap", "127.0.0.1:1", "--controller", "127.0.0.1:1"),
        ("controller", "recover"),
    ],
)
def test_directories_that_do_not_exist_are_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "typo"
    option = "--from" if "recover" in command else "--store"
    found = CliRunner().invoke(app, [*command, option, f"file:{store}"])
    with pytest.raises(UsageError, match="typo: the directory does not exist"):
        raise found.exception or AssertionError(found.output)
    assert not store.exists()
