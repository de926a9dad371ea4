"""Settings with name, type and limits, in the annotations of config classes:

wal_linger_ms: Annotated[int, Setting("wal.linger.ms", Kind.DURATION, low=0)] = 250

Documentation, `--help`, the JSON schema, DescribeConfigs and validation are derived from them.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast, get_type_hints


class Kind(Enum):
    """The type of a setting, which determines how values are written."""

    BOOL = "bool"
    INT = "int"
    DURATION = "duration"
    """Milliseconds, or a number with a unit."""
    BYTES = "bytes"
    """Bytes, or a number with a unit."""
    TEXT = "text"
    ENUM = "enum"
    LIST = "list"
    """Strings, separated by commas in a single string."""
    LISTENERS = "listeners"
    """A LIST of [NAME://]host:port."""
    PATH = "path"
    STORE = "store"
    """A store URL; shown without its secrets."""
    SECRET = "secret"  # noqa: S105  # the name of a type
    """A string that is never displayed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting for operators; a field without a `Setting` is a limit that operators should not
    change.

    name: Kafka's, if Kafka has the setting. low, high: inclusive limits of numbers. choices: the
    values of an ENUM. templates: whether `{pod}` and `{ordinal}` in the value are replaced.
    is_dynamic: whether it can change at runtime. per_listener: whether a listener can have its own
    value, as `listener.name.NAME.` and the name.
    """

    name: str
    kind: Kind
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    templates: bool = False
    is_dynamic: bool = False
    per_listener: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A setting of a config class. field: the attribute. doc: the string after the attribute, as
    one line.
    """

    setting: Setting
    field: str
    default: object
    required: bool
    doc: str

    @property
    def name(self) -> str:
        return self.setting.name


class SettingInvalid(ValueError):
    """The value is invalid. The message contains the value and the valid values."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r} is not allowed: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


_DURATIONS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES: Final = {
    "B": 1,
    "kB": 1_000,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_NUMBER: Final = re.compile(r"(-?[0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
HIDDEN: Final = "[hidden]"
"""Displayed in place of a secret, as in Kafka."""

STORE_FORMS: Final = (
    "s3://BUCKET[/PREFIX]?endpoint=URL&region=NAME, gs://BUCKET[/PREFIX],"
    " az://ACCOUNT/CONTAINER[/PREFIX] or file:DIR"
)

_ATTRIBUTE: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
_BOOLS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


_KNOWN: Final[dict[type[Any], tuple[Field, ...]]] = {}
"""Cache of parsed classes, one entry per config class."""


def fields_of(config_type: type[Any]) -> tuple[Field, ...]:
    """Return the settings of a config class (a dataclass or a msgspec Struct) in order."""
    if config_type not in _KNOWN:
        _KNOWN[config_type] = _read(config_type)
    return _KNOWN[config_type]


def _read(config_type: type[Any]) -> tuple[Field, ...]:
    settings: dict[str, Setting] = {}
    for attribute, hint in get_type_hints(config_type, include_extras=True).items():
        for extra in getattr(hint, "__metadata__", ()):
            if isinstance(extra, Setting):
                settings[attribute] = extra
    names = {attribute: setting.name for attribute, setting in settings.items()}
    docs = _docs_of(config_type)
    found: list[Field] = []
    for attribute, parameter in inspect.signature(config_type).parameters.items():
        if attribute in settings:
            required = parameter.default is inspect.Parameter.empty
            default = None if required else parameter.default
            found.append(
                Field(
                    settings[attribute],
                    attribute,
                    default,
                    required,
                    renamed(names, docs.get(attribute, "")),
                )
            )
    return tuple(found)


def renamed(names: Mapping[str, str], text: str) -> str:
    """Replace attribute names in a text with setting names. names: by attribute."""
    return _ATTRIBUTE.sub(lambda found: names.get(found[0], found[0]), text)


def _docs_of(config_type: type[Any]) -> dict[str, str]:
    tree = ast.parse(inspect.getsource(config_type).lstrip())
    assert isinstance(tree.body[0], ast.ClassDef)
    docs: dict[str, str] = {}
    for line, after in zip(tree.body[0].body, tree.body[0].body[1:], strict=False):
        if (
            not isinstance(line, ast.AnnAssign)
            or not isinstance(line.target, ast.Name)
            or not isinstance(after, ast.Expr)
        ):
            continue
        if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            docs[line.target.id] = " ".join(after.value.value.split())
    return docs


def check(config: object) -> None:
    """Check the limits of every setting. Config classes call it when they are constructed. Raises
    SettingInvalid with the name of the attribute.
    """
    for field in fields_of(type(config)):
        value = getattr(config, field.field)
        if not _is_within(field.setting, value):
            raise SettingInvalid(field.field, value, allowed(field.setting))


def parse(setting: Setting, given: object) -> object:
    """Parse a value from a string, or from a TOML or JSON value. Raises SettingInvalid."""
    try:
        value = _PARSERS[setting.kind](given)
    except UnicodeEncodeError:
        raise SettingInvalid(setting.name, given, "text in UTF-8") from None
    except (ValueError, KeyError, TypeError):
        raise SettingInvalid(setting.name, given, allowed(setting)) from None
    if not _is_within(setting, value):
        raise SettingInvalid(setting.name, given, allowed(setting))
    return value


def _is_within(setting: Setting, value: object) -> bool:
    if setting.kind is Kind.ENUM:
        return value in setting.choices
    if not isinstance(value, int) or isinstance(value, bool):
        return True
    return (setting.low is None or value >= setting.low) and (
        setting.high is None or value <= setting.high
    )


def _bool(given: object) -> bool:
    return given if isinstance(given, bool) else _BOOLS[_text(given).strip().lower()]


def _number_in(units: dict[str, int]) -> Callable[[object], int]:
    def number(given: object) -> int:
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        found = _NUMBER.fullmatch(_text(given).strip())
        if found is None or (found[2] and found[2] not in units):
            raise ValueError(given)
        unit = units[found[2]] if found[2] else 1
        whole, _, part = found[1].partition(".")
        scaled = int(whole.replace("_", "")) * unit
        more, rest = divmod(int(part or "0") * unit, int("1" + "0" * len(part)))
        if rest:
            raise ValueError(given)
        return scaled - more if found[1].startswith("-") else scaled + more

    return number


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(given)
    given.encode()  # raises UnicodeEncodeError for argument bytes that are not UTF-8
    return given


def _list(given: object) -> tuple[str, ...]:
    """Parse a list. Every comma is a separator, because an item with a comma could not be written
    back.
    """
    texts = (
        [_text(part) for part in cast("list[object]", given)]
        if isinstance(given, list | tuple)
        else [_text(given)]
    )
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


_PARSERS: Final[dict[Kind, Callable[[object], object]]] = {
    Kind.BOOL: _bool,
    Kind.INT: _number_in({}),
    Kind.DURATION: _number_in(_DURATIONS),
    Kind.BYTES: _number_in(_SIZES),
    Kind.TEXT: _text,
    Kind.ENUM: _text,
    Kind.LIST: _list,
    Kind.LISTENERS: _list,
    Kind.PATH: lambda given: Path(_text(given)),
    Kind.STORE: _text,
    Kind.SECRET: _text,
}


_KINDS_OF_NAMES: Final = {"ms": Kind.DURATION, "bytes": Kind.BYTES}


def without_unit(name: str, text: str) -> str:
    """Return the number of a value with a unit, such as `1h` or `10GiB`, for Kafka's configs in
    milliseconds or bytes, whose names end with `.ms` or `.bytes`. Other values are returned
    unchanged.
    """
    kind = _KINDS_OF_NAMES.get(name.rpartition(".")[2])
    if kind is None or not text[-1:].isalpha():
        return text
    try:
        return str(_PARSERS[kind](text))
    except ValueError:
        return text


def text_of(setting: Setting, value: object) -> str:
    """Format a value for tools, with numbers that have no unit."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(cast("tuple[str, ...]", value))
    return str(value)


def shown(setting: Setting, value: object) -> str:
    """Format a value for people, with the largest unit that results in a whole number."""
    units = {
        Kind.DURATION: _DURATIONS,
        Kind.BYTES: {unit: size for unit, size in _SIZES.items() if unit == "B" or "i" in unit},
    }
    if setting.kind not in units or not isinstance(value, int) or value <= 0:
        return text_of(setting, value)
    unit, size = max(
        ((unit, size) for unit, size in units[setting.kind].items() if value % size == 0),
        key=lambda found: found[1],
    )
    return str(value) if unit == "B" else f"{value // size}{unit}"


def allowed(setting: Setting) -> str:
    """Describe the allowed values."""
    match setting.kind:
        case Kind.BOOL:
            return "true or false"
        case Kind.ENUM:
            return "one of " + ", ".join(setting.choices)
        case Kind.INT:
            return "a whole number" + _range(setting)
        case Kind.DURATION:
            return "milliseconds, or a number with ms, s, min, h or d" + _range(setting)
        case Kind.BYTES:
            return "bytes, or a number with KiB, MiB or GiB" + _range(setting)
        case Kind.LIST:
            return "a list, separated by commas"
        case Kind.LISTENERS:
            return "[NAME://]host:port, several separated by commas"
        case Kind.STORE:
            return STORE_FORMS
        case _:
            return "text"


def allowed_briefly(setting: Setting) -> str:
    """Describe the allowed values, without the notation of durations and sizes."""
    match setting.kind:
        case Kind.DURATION:
            return "duration" + _range(setting)
        case Kind.BYTES:
            return "size" + _range(setting)
        case Kind.LIST | Kind.LISTENERS:
            return "list of [NAME://]host:port" if setting.kind is Kind.LISTENERS else "list"
        case Kind.PATH:
            return "directory"
        case Kind.STORE:
            return "URL"
        case _:
            return allowed(setting)


def _range(setting: Setting) -> str:
    low = "" if setting.low is None else shown(setting, setting.low)
    high = "" if setting.high is None else shown(setting, setting.high)
    if low and high:
        return f", {low} to {high}"
    return f", at least {low}" if low else f", at most {high}" if high else ""
