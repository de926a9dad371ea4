"""Load commands lazily, because building the options of all commands takes longer than running most
of them.
"""

import inspect
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.deploy.errors import UsageError, check_utf_8

GLOBAL_OPTIONS: Final = ("--command-config", "--profile")
_BOOTSTRAP: Final = frozenset({"-b", "--bootstrap", "--bootstrap-server"})
_TAKE_BYTES: Final = {
    "produce": frozenset({"key", "value", "headers", "key_separator"}),
    "consume": frozenset({"key"}),
}
"""Parameters, by command, that do not have to be UTF-8, because they are parts of records."""
_FLOAT_MIN: Final = 1e-9
_FLOAT_MAX: Final = 1e9
"""Range of numbers without a narrower one: seconds that a system call accepts, also for 1/rate."""
_INT_MAX: Final = 2**63 - 1
_PATHS: Final = frozenset({"path", "file", "directory"})
"""Click's names for path types."""
OUTPUT_FORMS: Final = {"--json": "--output=json", "--csv": "--output=csv"}
"""Short forms of --output, for every command that has it."""


class Command(TyperCommand):
    """A command. If it has --output, --json and --csv are short for --output json and --output
    csv.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's context
        left = super().parse_args(ctx, _checked(self, ctx, args))
        _check_values(self, ctx)
        return left


class Group(TyperGroup):
    """A command with subcommands that can also run without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's context
        left = super().parse_args(ctx, _checked(self, ctx, args))
        _check_values(self, ctx)
        return left

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's
        """Suggest `configs` for subcommands that do not exist in `config`."""
        if ctx.info_name == "config" and args[0] in {"describe", "alter", "list"}:
            ctx.fail(
                f"`config` shows settings of nodes. Did you mean `penstock configs {args[0]}`?"
            )
        return super().resolve_command(ctx, args)


class LazyCommands(TyperGroup):
    """Commands that are imported when they are called. GLOBAL_OPTIONS may appear anywhere, as in
    Kafka's tools.
    """

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Summary of each command, by panel and name."""
    _lists_summaries = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's context
        return [*self._names(), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - click's context and command
        for panel, commands in self.panels.items():
            if cmd_name in commands:
                if self._lists_summaries:
                    summary = commands[cmd_name]
                    return TyperCommand(cmd_name, help=summary, rich_help_panel=panel)
                return _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's
        with self._summaries():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401 - click's
        with self._summaries():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _summaries(self) -> Generator[None]:
        """Make `get_command` return only summaries, without loading commands."""
        self._lists_summaries = True
        try:
            yield
        finally:
            self._lists_summaries = False

    def _names(self) -> list[str]:
        return [name for commands in self.panels.values() for name in commands]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's context
        if args and (option := args[0].partition("=")[0]) in _BOOTSTRAP:
            ctx.fail(f"{option} goes after the command: penstock topics list -b HOST:PORT")
        left = super().parse_args(ctx, _moved_to_front(args))
        _check_values(self, ctx)
        return left

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's
        """Suggest a similar command, because Typer suggests only loaded ones."""
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            near = ", ".join(repr(each) for each in get_close_matches(name, self._names()))
            if near:
                ctx.fail(f"No such command {name!r}. Did you mean {near}?")
        return super().resolve_command(ctx, args)


@cache
def _load(name: str) -> Any:  # noqa: ANN401 - click's command
    """Import the module of a command, which contains a `typer.Typer` named `app`, or a function
    with the name of the command.
    """
    module = import_module(f"penstock.deploy.cli.{name.replace('-', '_')}")
    found: typer.Typer | Callable[..., None] = getattr(module, "app", None) or getattr(module, name)
    holder = typer.Typer()
    holder.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name)(found)
    _prepare(holder)
    built = cast("TyperGroup", typer.main.get_command(holder))
    return built.commands[name]


def _prepare(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the help, because Typer keeps the line breaks of
    docstrings. Make commands accept --json and --csv, and options in dataclasses.
    """
    from penstock.deploy.cli.option_groups import with_option_groups

    for command in commands.registered_commands:
        command.help = _joined(command.callback)
        command.cls = Command
        if command.callback is not None:
            command.callback = with_option_groups(command.callback)
    group_itself = commands.registered_callback
    if group_itself is not None and group_itself.invoke_without_command is True:
        group_itself.help = _joined(group_itself.callback)
        if group_itself.callback is not None:
            group_itself.callback = with_option_groups(group_itself.callback)
    for group in commands.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            _prepare(group.typer_instance)


def _joined(callback: Callable[..., Any] | None) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(callback) or "")


def _moved_to_front(arguments: list[str]) -> list[str]:
    """Move global options and their values before the command."""
    front: list[str] = []
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        if item == "--":
            return [*front, *rest, item, *items]
        if item in GLOBAL_OPTIONS:
            front += [item, *islice(items, 1)]
        elif item.startswith(tuple(f"{option}=" for option in GLOBAL_OPTIONS)):
            front.append(item)
        else:
            rest.append(item)
    return [*front, *rest]


def _checked(command: Any, ctx: Any, arguments: list[str]) -> list[str]:  # noqa: ANN401 - click's
    """Return the arguments with --output for --json and --csv. Fail if broker addresses are given
    to a command that contacts controllers.
    """
    known = {option.name for option in command.params}
    if "controller" in known and "bootstrap" not in known:
        for item in arguments:
            if (option := item.partition("=")[0]) in _BOOTSTRAP:
                ctx.fail(f"{option}: this command asks the controllers: --controller HOST:PORT")
    if "output" not in known:
        return arguments
    own = {flag for option in command.params for flag in option.opts}
    forms = {short: form for short, form in OUTPUT_FORMS.items() if short not in own}
    return list(_replaced(iter(arguments), forms))


def _check_values(command: Any, ctx: Any) -> None:  # noqa: ANN401 - click's
    """Raise UsageError for a number out of range, and for text that is not UTF-8. Paths may contain
    arbitrary bytes.
    """
    taken = _TAKE_BYTES.get(command.name, frozenset[str]())
    for parameter in command.params:
        if parameter.name in taken or parameter.type.name in _PATHS:
            continue
        given = ctx.params.get(parameter.name)
        values = cast("Iterable[object]", given if isinstance(given, list | tuple) else (given,))
        is_option = parameter.param_type_name == "option"
        name = "/".join(parameter.opts) if is_option else parameter.human_readable_name
        for value in values:
            if isinstance(value, str):
                check_utf_8(value, name)
            elif isinstance(value, float):
                if value and not _FLOAT_MIN <= abs(value) <= _FLOAT_MAX:
                    allowed = f"0, or {_FLOAT_MIN:g} to {_FLOAT_MAX:g}"
                    raise UsageError(f"{name} {value} is not allowed: {allowed}")
            elif isinstance(value, int) and abs(value) > _INT_MAX:
                raise UsageError(f"{name} {value} is out of range: at most {_INT_MAX}")


def _replaced(items: Iterator[str], forms: Mapping[str, str]) -> Iterator[str]:
    for item in items:
        if item == "--":
            yield item
            break
        yield forms.get(item, item)
    yield from items


def completion_module() -> Any:  # noqa: ANN401 - Typer declares no export of its completion
    """Import and return Typer's shell completion module."""
    return import_module("typer.completion")


def commands_of(group: Any) -> dict[str, Any]:  # noqa: ANN401 - click's group
    """Return the commands of a group by name, after loading all of them. For documentation and
    tests.
    """
    return {name: group.get_command(None, name) for name in group.list_commands(None)}
