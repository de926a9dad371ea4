"""Settings of one node from flags, environment and a TOML file, in this order of weight; then the defaults of the config class.

Invariant: nothing that was given is silently dropped: an unknown flag, key, or `PENSTOCK_` variable close to a known one is an error that
names the nearest setting. Pure: arguments, environment and parsed file are parameters. Must not know what a setting means.
"""

import ast
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec

from deploy.errors import UnknownSetting, UsageError

PREFIX: Final = "PENSTOCK_"
STORE: Final = "store"
LOG_LEVEL: Final = "log_level"
COMMON: Final = (STORE, LOG_LEVEL)
"""Settings of every role that belong to the process, not to a config class."""

FOREIGN_VARIABLES: Final = frozenset({"BOOTSTRAP", "CONTROLLER", "STATE_FILE", "SUPERVISOR_PID", "CONFIG"})
"""Variables of the command line; a node does not look at them."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Field:
    """One setting. many: a list, separated by commas where it is given as text."""

    name: str
    default: str
    required: bool
    many: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Settings:
    """values: of the config class, as given. store, log_level: for the process."""

    values: dict[str, object]
    store: str | None
    log_level: str


def fields_of(config_type: type[Any]) -> list[Field]:
    """The settings of a config class (a dataclass or a msgspec Struct), in its order."""
    hints = get_type_hints(config_type)
    found: list[Field] = []
    for name, parameter in inspect.signature(config_type).parameters.items():
        required = parameter.default is inspect.Parameter.empty
        default = "" if required else _shown(parameter.default)
        found.append(Field(name, default, required, many=getattr(hints[name], "__origin__", None) is tuple))
    return found


def _shown(value: object) -> str:
    return ",".join(str(part) for part in cast("tuple[object, ...]", value)) if isinstance(value, tuple) else str(value)


def docs_of(config_type: type[Any]) -> dict[str, str]:
    """First sentence of the string behind each field in the class's source: what `--help` shows."""
    tree = ast.parse(inspect.getsource(config_type).lstrip())
    assert isinstance(tree.body[0], ast.ClassDef)
    docs: dict[str, str] = {}
    for line, after in zip(tree.body[0].body, tree.body[0].body[1:], strict=False):
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and documented:
            docs[line.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]  # checked as `documented`
    return docs


def from_flags(arguments: Sequence[str], names: Sequence[str]) -> dict[str, object]:
    """`--listen-port 9092` or `--listen-port=9092` for each name; a flag given twice counts last."""
    given: dict[str, object] = {}
    flags = ["--" + name.replace("_", "-") for name in names]
    rest = list(arguments)
    while rest:
        flag, has_value, value = rest.pop(0).partition("=")
        if flag not in flags:
            raise UnknownSetting(flag, "command line", flags) if flag.startswith("-") else UsageError(f"unexpected argument {flag!r}")
        if not has_value:
            if not rest:
                raise UsageError(f"{flag} needs a value")
            value = rest.pop(0)
        given[names[flags.index(flag)]] = value
    return given


def from_environment(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, object]:
    """`PENSTOCK_LISTEN_PORT`. Variables that Kubernetes makes up for a service called penstock (`tcp://...`) are not ours."""
    given: dict[str, object] = {}
    for variable, value in environment.items():
        key = variable.removeprefix(PREFIX)
        if key == variable or key in FOREIGN_VARIABLES or _is_service_link(key, value):
            continue
        if key.lower() in names:
            given[key.lower()] = value
        elif get_close_matches(key.lower(), names, n=1, cutoff=0.8):
            raise UnknownSetting(variable, "environment", [PREFIX + name.upper() for name in names])
    return given


def _is_service_link(key: str, value: str) -> bool:
    return value.startswith(("tcp://", "udp://")) or "_SERVICE_" in key or "_TCP_" in key or "_UDP_" in key


def from_file(content: Mapping[str, object], role: str, names: Sequence[str], path: str, other_roles: Iterable[str]) -> dict[str, object]:
    """Keys at the top, or in a table named as the role, which wins; tables of other roles are for them."""
    table = content.get(role, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: [{role}] must be a table")
    given = {key: value for key, value in content.items() if key != role and key not in other_roles}
    given |= {str(key): value for key, value in table.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]  # TOML
    for key in given:
        if key not in names:
            raise UnknownSetting(key, path, list(names))
    return given


def merge(fields: Sequence[Field], *sources: Mapping[str, object], log_level: str = "info") -> Settings:
    """Sources from the lightest to the weightiest."""
    merged: dict[str, object] = {}
    for source in sources:
        merged |= source
    store = merged.pop(STORE, None)
    level = str(merged.pop(LOG_LEVEL, log_level))
    for field in fields:
        value = merged.get(field.name)
        if field.many and isinstance(value, str):
            merged[field.name] = [part.strip() for part in value.split(",") if part.strip()]
        if field.required and value is None:
            raise UsageError(f"{field.name} is missing: give {field.flag}, {PREFIX}{field.name.upper()} or {field.name} in the file")
    return Settings(merged, None if store is None else str(store), level)


def build(config_type: type[_T], settings: Settings, invalid: tuple[type[Exception], ...]) -> _T:
    """The config, typed and checked by its class. invalid: what the class raises by itself."""
    try:
        return msgspec.convert(settings.values, config_type, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        what, _, name = str(error).removesuffix("`").partition(" - at `$.")
        given = f"{name}={settings.values[name]!r} is not allowed: " if name in settings.values else ""
        raise UsageError(given + what) from None
    except invalid as error:
        raise UsageError(str(error)) from None


def _decode(kind: type[Any], value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{value!r} is not a {kind.__name__}")
