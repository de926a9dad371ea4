"""Collect the settings given for one role by flags, variables and a TOML file, each with its
source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from penstock.base.listeners import LISTENER_PREFIX
from penstock.base.settings import Kind
from penstock.broker.listener_settings import listener_key_problem, listener_settings
from penstock.deploy.errors import UnknownSetting, UsageError
from penstock.deploy.node.config.definition import (
    ROLES,
    Role,
    flag_of,
    listener_setting_of_variable,
    roles_with,
    setting_of,
    settings_of,
    variable_of,
)
from penstock.objectstore.errors import InvalidStoreUrl
from penstock.objectstore.url import parse_store_url, redact_url

PREFIX: Final = "PENSTOCK_"
CONFIG_FLAG: Final = "--config"
CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
SET_FLAG: Final = "--set"

FOREIGN_VARIABLES: Final = frozenset(
    {
        "BOOTSTRAP",
        "CONTROLLER",
        "STATE_FILE",
        "READY_PIPE",
        "SUPERVISOR_PID",
        "CONFIG",
        "COMMAND_CONFIG",
        "USER_PASSWORD",
        "WAREHOUSE",
        "CATALOG_URI",
    }
)
"""Variables of the command line, which nodes ignore."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as given by the user, and its source for messages."""

    value: object
    place: str


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings from flags, by name. config: path of the file, or empty."""

    given: dict[str, Given]
    config: str = ""


def from_flags(role: Role, arguments: Sequence[str]) -> Flags:
    """Parse `--num-partitions 3`, `--num-partitions=3` and `--set num.partitions=3`; the last value
    wins. A BOOL flag without a value means true.

    Invariant: nothing is silently dropped. An unknown flag, variable or key is an error that
    suggests the nearest setting. A setting of another role is an error in sources for this role
    only, and ignored in shared sources. Pure: arguments, environment and parsed file are
    parameters. This module must not validate values.
    """
    known = {flag_of(name): name for name in settings_of(role)}
    given: dict[str, Given] = {}
    config = ""
    rest = list(arguments)
    while rest:
        flag, has_value, value = rest.pop(0).partition("=")
        if flag not in known and flag not in {CONFIG_FLAG, SET_FLAG}:
            raise _unknown_flag(role, flag, [*known, CONFIG_FLAG, SET_FLAG])
        if not has_value:
            value = _value_of(role, known.get(flag), flag, rest)
        if flag == CONFIG_FLAG:
            config = value
        elif flag == SET_FLAG:
            name, value = _assignment(role, value)
            _check_public(role, name, SET_FLAG, value)
            given[name] = Given(value, f"{SET_FLAG} {name}")
        else:
            _check_public(role, known[flag], flag, value)
            given[known[flag]] = Given(value, flag)
    return Flags(given, config)


def _value_of(role: Role, name: str | None, flag: str, rest: list[str]) -> str:
    """Consume the value after a flag."""
    if rest and not rest[0].startswith("--"):
        return rest.pop(0)
    if name is not None and settings_of(role)[name].setting.kind is Kind.BOOL:
        return "true"
    if not rest:
        raise UsageError(f"{flag} needs a value")
    return rest.pop(0)


def _check_public(role: Role, name: str, flag: str, value: str) -> None:
    """Reject secrets on the command line, which all users of the machine can see."""
    field = setting_of(role, name)
    if name in {"store", "wal.store"} and _has_secrets(value):
        raise UsageError(
            f"{flag}: {redact_url(value)} has keys, and other processes can see flags: use the"
            f" variable {variable_of(name)}, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if field is not None and field.setting.kind is Kind.SECRET:
        raise UsageError(
            f"{flag}: {name} is a secret, and other processes can see flags: use the variable"
            f" {variable_of(name)} or {name} in the file"
        )


def _has_secrets(store_url: str) -> bool:
    """Return whether a store URL contains secrets. Return False for an invalid URL, which is
    reported when its value is parsed.
    """
    try:
        parse_store_url(store_url)
    except InvalidStoreUrl:
        return False
    return redact_url(store_url) != store_url


def _unknown_flag(role: Role, flag: str, known: Sequence[str]) -> UsageError:
    if not flag.startswith("-"):
        return UsageError(f"unexpected argument {flag!r}")
    for other in ROLES:
        if flag in map(flag_of, settings_of(other)):
            return UsageError(
                f"command line: {flag} is a setting of the {other}, not of the {role}"
            )
    return UnknownSetting(flag, "command line", known)


def _assignment(role: Role, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(
            f"{SET_FLAG} {text!r} is not allowed: use KEY=VALUE, as in {SET_FLAG} num.partitions=3"
        )
    _check_known(role, name.strip(), f"{SET_FLAG}")
    return name.strip(), value


def check_assignment(text: str) -> None:
    """Check KEY=VALUE and that some role has the key. Raises UsageError."""
    name = text.partition("=")[0].strip()
    owners = roles_with(name)
    if not owners:
        raise _unknown(
            name, SET_FLAG, sorted({known for role in ROLES for known in settings_of(role)})
        )
    _assignment(owners[0], text)


def _check_known(role: Role, name: str, place: str) -> None:
    if setting_of(role, name) is not None:
        return
    others = roles_with(name)
    if others:
        raise UsageError(f"{place}: {name} is a setting of the {others[0]}, not of the {role}")
    raise _unknown(name, place, list(settings_of(role)))


def _unknown(name: str, place: str, known: Sequence[str]) -> UsageError:
    if problem := listener_key_problem(name):
        return UsageError(f"{place}: {name} is not allowed: {problem}")
    return UnknownSetting(name, place, known)


def from_environment(role: Role, environment: Mapping[str, str]) -> dict[str, Given]:
    """Collect variables such as `PENSTOCK_NUM_PARTITIONS`. Ignores the variables that Kubernetes
    sets for services whose names begin with penstock.
    """
    known = {variable_of(name): name for each in ROLES for name in settings_of(each)}
    given: dict[str, Given] = {}
    for variable, value in environment.items():
        key = variable.removeprefix(PREFIX)
        if own := listener_setting_of_variable(variable):
            if setting_of(role, own) is not None:
                given[own] = Given(value, f"variable {variable}")
            continue
        if key == variable or key in FOREIGN_VARIABLES or _is_service_link(key, value):
            continue
        if variable.startswith(variable_of(LISTENER_PREFIX)):
            raise UsageError(
                f"environment: {variable} is not a setting of a single listener; these are "
                f"{', '.join(listener_settings())}. Set other settings for all listeners"
            )
        if variable not in known:
            raise UnknownSetting(variable, "environment", list(known))
        if known[variable] in settings_of(role):
            given[known[variable]] = Given(value, f"variable {variable}")
    return given


def _is_service_link(key: str, value: str) -> bool:
    return (
        value.startswith(("tcp://", "udp://"))
        or "SERVICE_HOST" in key
        or "SERVICE_PORT" in key
        or "_TCP_" in key
        or "_UDP_" in key
    )


def from_file(role: Role, content: Mapping[str, object], path: str) -> dict[str, Given]:
    """Collect keys. Top-level settings apply to every role that has them; those in the table of a
    role apply only to it and take precedence.
    """
    shared: dict[str, Given] = {}
    own: dict[str, Given] = {}
    for key, value in _flattened(content):
        if roles_with(key):
            if setting_of(role, key) is not None:
                shared[key] = Given(value, path)
            continue
        owner, _, name = key.partition(".")
        if owner not in ROLES or not name:
            raise _unknown(
                key, path, sorted({name for each in ROLES for name in settings_of(each)})
            )
        _check_known(owner, name, f"{path}, [{owner}]")
        if owner == role:
            own[name] = Given(value, f"{path}, [{role}]")
    return shared | own


def _flattened(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Join nested tables to dotted keys: TOML parses `num.partitions = 3` as a nested table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flattened(cast("Mapping[str, object]", value), f"{before}{key}.")
        else:
            yield f"{before}{key}", value
