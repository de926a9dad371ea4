"""Invalid arguments and variables are reported before a command does anything."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.deploy.admin.reassign.plan import parse_reassignment
from penstock.deploy.admin.topic_plan import read_wanted
from penstock.deploy.cli.app import app
from penstock.deploy.errors import UsageError
from penstock.deploy.local.seed import parse_seed
from penstock.deploy.records.formats import BadRecord, TextCodec
from penstock.deploy.records.lines import LineReader

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


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
def test_sizes_without_a_limit_are_reported(number: str) -> None:
    found = CliRunner().invoke(app, ["compact", "t", f"--max-gib={number}", "--store=file:x"])
    with pytest.raises(UsageError, match=rf"^--max-gib {number}.* is not allowed: 0 to 1048576"):
        raise found.exception or AssertionError


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


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--timeout=nan", "0 or more seconds"),
        ("--timeout=-1", "0 or more seconds"),
        ("--interval=nan", "0.1 to 3600 seconds"),
        ("--interval=0", "0.1 to 3600 seconds"),
    ],
)
def test_mirrors_that_would_never_finish_are_reported(option: str, allowed: str) -> None:
    found = CliRunner().invoke(app, ["mirror", "finish", "--from", "127.0.0.1:1", option])
    with pytest.raises(UsageError, match=f"is not allowed: {allowed}"):
        raise found.exception or AssertionError(found.output)
