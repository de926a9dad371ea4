"""Check that the settings, metrics, commands, options, variables, alerts and make targets in the
docs exist.

A code span is checked as one name or as a command, a code block for assignments and `penstock`
commands. Names of other projects pass if any file of the repository uses them.
"""

import difflib
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

from penstock.broker.listener_settings import listener_field
from penstock.deploy.cli.lazy import GLOBAL_OPTIONS, commands_of
from penstock.deploy.node.config.definition import listener_setting_of_variable
from tests.tidy import names
from tests.tidy.markdown import Code, code
from tests.tidy.repository import ROOT, files, listed, packages, shown, text
from tests.tidy.test_tidy_references import is_defined

FILE_ENDS = (
    ".py",
    ".md",
    ".sh",
    ".json",
    ".jsonl",
    ".yaml",
    ".yml",
    ".toml",
    ".gz",
    ".png",
    ".html",
    ".txt",
    ".csv",
    ".svc",
    ".local",
)
DOTTED = re.compile(r"[a-z][a-z0-9]*(?:\.[a-z][a-z0-9]*)+")
ASSIGNED = re.compile(rf"(?:^|[\s\"'{{,])({DOTTED.pattern})[\"']?\s*(?:=(?!=)|:\s)")
QUOTED = re.compile(rf"[\"']({DOTTED.pattern})[\"']\s*[:,=)]")
SNAKE = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")
VARIABLE = re.compile(r"(?<![\w.-])PENSTOCK(?:_[A-Z0-9]+)+(?![\w*{-])")
METRIC = re.compile(r"(?<![\w/.:-])penstock_\w+(?![\w/-])")
ALERT = re.compile(r"\bPenstock[A-Z]\w+")
FLAG = re.compile(r"--[a-z][\w.-]*")
COMMAND = re.compile(
    r"(?:^|[|;&]\s*|\s--\s+|\bexec\s+)(?:\$"
    r" )?(?:[A-Z_]+=\S+\s+)*(?:[^\s=]*/bin/)?penstock(?:\s+([^|;&]*)|$)"
)
WORD = re.compile(r"[a-z][a-z-]*")


@cache
def pages() -> tuple[Path, ...]:
    """Return the Markdown pages of the user documentation."""

    def is_page(parts: tuple[str, ...]) -> bool:
        return (
            parts == ("README.md",)
            or parts[0] == "docs"
            or (parts[0] == "helm" and parts[-1].startswith("README"))
        )

    return tuple(
        path for path in files() if path.suffix == ".md" and is_page(path.relative_to(ROOT).parts)
    )


def wrong(
    path: Path, line: int, kind: str, name: str, known: Collection[str], but: str = ""
) -> str:
    """Return the message for one offender, with the most similar existing name."""
    near = but or next(iter(difflib.get_close_matches(name, known, 1, 0.5)), "")
    return f"{shown(path, line)}: no {kind} {name}" + (f"; did you mean {near}?" if near else "")


def codes() -> Iterator[tuple[Path, Code]]:
    for path in pages():
        for found in code(text(path)):
            yield path, found


def matches(pattern: re.Pattern[str]) -> Iterator[tuple[Path, int, re.Match[str]]]:
    """Yield the matches in prose and code of all pages."""
    for path in pages():
        for number, line in enumerate(text(path).splitlines(), 1):
            for match in pattern.finditer(line):
                yield path, number, match


def dotted_names(found: Code) -> Iterator[str]:
    """Yield the dotted names that could be settings."""
    if not found.is_block and DOTTED.fullmatch(found.text):
        yield found.text
    elif found.language in {"python", "py"}:
        yield from QUOTED.findall(found.text)
    elif found.language not in {"sql", "mermaid"}:
        yield from ASSIGNED.findall(found.text)


def is_setting(name: str) -> bool:
    """Return whether the name is a setting, or something else that the docs may mention."""
    first = name.split(".")[0]
    return (
        any(name in known for known in (names.settings(), names.chart_values(), names.quoted()))
        or name.removeprefix("kafka.").replace(".", "_") in names.client_arguments()
        or name in names.dotted_words()
        or re.sub(r"^config\.(broker|controller)\.", "", name) in names.settings()
        or listener_field(name) is not None
        or first == "spark"
        or name.endswith(FILE_ENDS)
        or (first in (*packages(), "tests", "benchmarks") and is_defined(name))
    )


def test_settings_exist() -> None:
    offenders = [
        wrong(path, found.line, "setting", name, names.settings() | names.chart_values())
        for path, found in codes()
        for name in dotted_names(found)
        if not is_setting(name)
    ]
    assert not offenders, listed(offenders)


def test_identifiers_with_underscores_exist() -> None:
    """Check log events, functions and columns: each must occur in the sources. Settings must be
    mentioned by their own name, not by their Python field.
    """
    known = names.words() | names.plugin_names() | names.metrics() | names.client_arguments()
    others = names.labels() | names.client_arguments() | names.url_parameters()
    others |= names.reader_arguments()
    fields = {
        field: name for field, name in names.setting_of_field().items() if field not in others
    }
    offenders = [
        wrong(path, found.line, "name for users", found.text, known, fields.get(found.text, ""))
        for path, found in codes()
        if not found.is_block
        and SNAKE.fullmatch(found.text)
        and (found.text in fields or found.text not in known)
    ]
    assert not offenders, listed(offenders)


def test_metrics_exist() -> None:
    offenders = []
    known = names.metrics() | names.plugin_names()
    for path, number, match in matches(METRIC):
        name = match.group()
        is_beginning = name.endswith("_") and any(metric.startswith(name) for metric in known)
        if name not in known and not is_beginning:
            offenders.append(wrong(path, number, "metric", name, known))
    assert not offenders, listed(offenders)


def test_alerts_exist() -> None:
    known = names.alerts() | names.classes()
    offenders = [
        wrong(path, number, "alert", match.group(), known)
        for path, number, match in matches(ALERT)
        if match.group() not in known and '"Sid"' not in match.string
    ]
    assert not offenders, listed(offenders)


def test_variables_exist() -> None:
    offenders = [
        wrong(path, found.line, "variable", name, names.variables())
        for path, found in codes()
        for name in VARIABLE.findall(found.text)
        if name not in names.variables() and listener_setting_of_variable(name) is None
    ]
    assert not offenders, listed(offenders)


def commands_in(found: Code) -> Iterator[list[str]]:
    """Yield the arguments of each `penstock` command."""
    for arguments in COMMAND.findall(re.sub(r"\s#\s.*", "", found.text)):
        try:
            yield shlex.split(arguments)
        except ValueError:
            yield arguments.split()


def problems(arguments: list[str], report: Callable[[str, str, Collection[str]], None]) -> None:
    """Yield the nonexistent subcommands and options."""
    command: names.Command = names.root()
    path = ["penstock"]
    rest = list(arguments)
    while isinstance(command, names.TyperGroup) and rest and WORD.fullmatch(rest[0]):
        word = rest.pop(0)
        if word not in commands_of(command):
            report(
                "command",
                " ".join([*path, word]),
                [" ".join([*path, known]) for known in commands_of(command)],
            )
            return
        below = commands_of(command)[word]
        assert isinstance(below, names.Command)
        command = below
        path.append(word)
    known = (
        names.node_flags(path[1])
        if path in (["penstock", "broker"], ["penstock", "controller"])
        else {*names.flags_of(command), *GLOBAL_OPTIONS}
    )
    for word in rest:
        if word == "--":
            return
        flag = word.split("=")[0]
        if FLAG.fullmatch(flag) and flag not in known:
            report(f"option of `{' '.join(path)}`", flag, known)


def test_commands_and_their_options_exist() -> None:
    offenders: list[str] = []
    for path, found in codes():

        def report(
            kind: str, name: str, known: Collection[str], path: Path = path, line: int = found.line
        ) -> None:
            offenders.append(wrong(path, line, kind, name, known))

        for arguments in commands_in(found):
            problems(arguments, report)
    assert not offenders, listed(offenders)


def test_options_in_code_spans_exist() -> None:
    """Options of other programs need the program in the span: `helm --set-file`."""
    known = names.all_flags()
    offenders = [
        wrong(path, found.line, "option", flag, known)
        for path, found in codes()
        if not found.is_block and found.text.startswith("--")
        for flag in FLAG.findall(found.text)
        if flag not in known and flag not in names.code_text()
    ]
    assert not offenders, listed(offenders)


def test_make_targets_exist() -> None:
    offenders = [
        wrong(path, found.line, "target", target, names.make_targets())
        for path, found in codes()
        for target in re.findall(r"(?:^|&& )make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)", found.text)
        if target not in names.make_targets()
    ]
    assert not offenders, listed(offenders)


def test_nonexistent_names_are_found() -> None:
    """Check the patterns with names that never existed."""
    found: list[str] = []
    for line in (
        "penstock topics destroy x",
        "penstock broker --node-idd 1",
        "FOO=1 penstock top --bootstrop x",
        "kubectl exec p -- penstock topp",
    ):
        for arguments in commands_in(Code(1, "", line, True)):
            problems(arguments, lambda kind, name, known: found.append(name))
    assert found == ["penstock topics destroy", "--node-idd", "--bootstrop", "penstock topp"]
    assert list(dotted_names(Code(1, "toml", "no.such.setting = 1 # a.b", True))) == [
        "no.such.setting"
    ]
    assert list(dotted_names(Code(1, "python", 'a.b = {"no.such": 1}', True))) == ["no.such"]
    assert not is_setting("no.such.setting")
