"""Compute the effective settings of one role, each with its source: flags take precedence over
variables, variables over the file, and the file over defaults.

Invariant: in an `Effective`, every value was parsed, is within its limits and is consistent with
the others. This module must not read files or the environment, which is the task of
`deploy.node.config.load`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

from penstock.base.listeners import expand, split_key, uses
from penstock.base.settings import (
    HIDDEN,
    STORE_FORMS,
    Field,
    Kind,
    SettingInvalid,
    fields_of,
    parse,
    renamed,
    text_of,
)
from penstock.base.settings import shown as shown_value
from penstock.broker.config import BrokerConfig
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.errors import InvalidConfig
from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.definition import (
    PARTS,
    Role,
    flag_of,
    setting_of,
    settings_of,
    variable_of,
)
from penstock.deploy.node.config.exposure import InsecureListener, exposures
from penstock.deploy.node.config.sources import Given
from penstock.objectstore.config import S3Config, StoreConfig
from penstock.objectstore.errors import InvalidStoreUrl
from penstock.objectstore.url import parse_store_url, redact_url
from penstock.stream.config import StreamConfig
from penstock.stream.wal.wal_defaults import CHARGED, WalDefaults, wal_defaults
from penstock.stream.wal.wal_store_url import check_wal_store_url

DEFAULT: Final = "default"
MISSING: Final = "missing"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Value:
    """Value of one setting. place: its source, or a note that it is a default (`is_default`)."""

    field: Field
    value: object
    place: str

    @property
    def is_default(self) -> bool:
        return self.place == DEFAULT or self.place.startswith(f"{DEFAULT} ")

    @property
    def shown(self) -> str:
        """Return the value for display, with secrets hidden."""
        return _without_secrets(self.field, shown_value(self.field.setting, self.value))

    @property
    def text(self) -> str:
        """Return the value for tools, with secrets hidden."""
        return _without_secrets(self.field, text_of(self.field.setting, self.value))


@dataclass(frozen=True, slots=True)
class Effective:
    """Effective settings of a role. values: by name, in the order of the definition. parts: config
    objects by class.
    """

    role: Role
    values: dict[str, Value]
    parts: dict[type[Any], Any]

    def part(self, config_type: type[_T]) -> _T:
        """Return the config object of this class."""
        return cast("_T", self.parts[config_type])


def resolve(
    role: Role, given: Mapping[str, Given], names: Mapping[str, str | int], *, complete: bool = True
) -> Effective:
    """Compute the effective settings. given: by name, already merged. names: values of `{pod}` and
    `{ordinal}`. complete: require all required settings; otherwise config objects that lack one are
    not built. Raises UsageError.
    """
    values: dict[str, Value] = {}
    for name, field in settings_of(role).items():
        if name in given:
            values[name] = Value(field, _parsed(field, given[name], names), given[name].place)
        elif field.required and complete:
            raise UsageError(_missing(field))
        else:
            values[name] = Value(field, field.default, MISSING if field.required else DEFAULT)
    for name, item in given.items():
        own = None if name in values else setting_of(role, name)
        if own is not None:
            values[name] = Value(own, _parsed(own, item, names), item.place)
    derived = CHARGED
    if values["store"].place != MISSING:
        derived = _wal_defaults(values["wal.store"], values["store"])
        _take_defaults(role, values, derived)
    buildable = [
        part
        for part in PARTS[role]
        if all(values[field.name].place != MISSING for field in fields_of(part))
    ]
    parts = {part: _built(part, values) for part in buildable}
    if StreamConfig in parts:
        parts[StreamConfig] = replace(parts[StreamConfig], defaults=derived.values)
    if BrokerConfig in parts and SecurityConfig in parts:
        _check_listeners(parts[BrokerConfig], parts[SecurityConfig], values)
    _check_exposed(parts, values)
    return Effective(role, values, parts)


def _check_listeners(
    broker: BrokerConfig, security: SecurityConfig, values: Mapping[str, Value]
) -> None:
    """Check that the settings required by the protocols of the listeners are set."""
    try:
        security.protocols([listener.name for listener in broker.bound])
    except SettingInvalid as error:
        raise UsageError(_refused(SecurityConfig, error, values)) from None


def _check_exposed(parts: Mapping[type[Any], Any], values: Mapping[str, Value]) -> None:
    """Reject listeners that allow unauthenticated access, unless `allow.insecure` is set."""
    if values["allow.insecure"].value:
        return
    for found in exposures(parts):
        if isinstance(found, InsecureListener):
            place = values["listeners"].place
            what = f"the listener {found.listener} is open to other machines"
            other = "bind it to 127.0.0.1"
        else:
            place = values["controller.quorum.bootstrap.servers"].place
            what = f"the controllers {', '.join(found.controllers)} are not on loopback"
            other = "use controllers on 127.0.0.1"
        raise UsageError(
            f"{place}: {what}, and {found.reason}: {found.remedy}, {other}, or set"
            f" {flag_of('allow.insecure')} ({variable_of('allow.insecure')}) to accept that"
        )


def _built(config_type: type[_T], values: Mapping[str, Value]) -> _T:
    arguments: dict[str, Any] = {
        field.field: values[field.name].value for field in fields_of(config_type)
    }
    if config_type in {BrokerConfig, SecurityConfig}:
        arguments["listener_values"] = _of_listeners(config_type, values)
    try:
        return config_type(**arguments)
    except (SettingInvalid, InvalidConfig) as error:
        raise UsageError(_refused(config_type, error, values)) from None
    except ValueError as error:
        raise UsageError(_renamed(config_type, str(error))) from None


def _of_listeners(
    config_type: type[Any], values: Mapping[str, Value]
) -> tuple[tuple[str, object], ...]:
    """Return the settings of single listeners that belong to this config class."""
    own = {field.name for field in fields_of(config_type)}
    return tuple(
        (name, value.value)
        for name, value in values.items()
        if (key := split_key(name)) is not None and key.setting in own
    )


def _parsed(field: Field, given: Given, names: Mapping[str, str | int]) -> object:
    try:
        value = given.value
        if field.setting.templates:
            value = _expanded(field, value, names)
        return parse(field.setting, value)
    except SettingInvalid as error:
        raise UsageError(
            f"{given.place}: {field.name}={_quoted(field, given.value)} is not allowed:"
            f" {error.allowed}"
        ) from None


def _expanded(field: Field, value: object, names: Mapping[str, str | int]) -> object:
    if isinstance(value, str):
        if "ordinal" not in names and uses([value], "ordinal"):
            raise SettingInvalid(
                field.name,
                value,
                "{ordinal} needs a host name that ends in a number; this one is"
                f" {names['pod']!r}",
            )
        return expand(field.name, value, names)
    if isinstance(value, list):
        return [_expanded(field, part, names) for part in cast("list[object]", value)]
    return value


def _parsed_store(store: Value) -> StoreConfig:
    try:
        return parse_store_url(str(store.value))
    except InvalidStoreUrl as error:
        raise UsageError(f"{store.place}: {error}") from None


def _wal_defaults(wal_store: Value, store: Value) -> WalDefaults:
    """Return the defaults that depend on the store of the WALs. Raises UsageError."""
    config = _parsed_store(store)
    if isinstance(config, S3Config) and config.is_express:
        raise UsageError(
            f"{store.place}: store: {config.redacted()} is a directory bucket (S3 Express One"
            " Zone), which can only be the WAL store: it lists keys in no order, and has one zone"
            " and no versions. Specify a general purpose bucket as store, and this one as wal.store"
        )
    if not wal_store.value:
        return wal_defaults(config, None)
    try:
        check_wal_store_url(str(wal_store.value), str(store.value))
    except InvalidStoreUrl as error:
        raise UsageError(f"{wal_store.place}: wal.store: {error}") from None
    return wal_defaults(config, _parsed_store(wal_store))


def _take_defaults(role: Role, values: dict[str, Value], derived: WalDefaults) -> None:
    if StreamConfig not in PARTS[role]:
        return
    for field in fields_of(StreamConfig):
        if field.field in derived.values and values[field.name].place == DEFAULT:
            place = f"{DEFAULT} {derived.where}"
            values[field.name] = Value(field, derived.values[field.field], place)


def _missing(field: Field) -> str:
    form = f" URL ({STORE_FORMS})" if field.setting.kind is Kind.STORE else ""
    return (
        f"{field.name} is missing: set {flag_of(field.name)}{form},"
        f" {variable_of(field.name)}, or {field.name} in the file"
    )


def _refused(
    config_type: type[Any], error: SettingInvalid | InvalidConfig, values: Mapping[str, Value]
) -> str:
    field = next((field for field in fields_of(config_type) if field.field == error.name), None)
    if field is None and error.name in values:  # a setting of one listener
        field = values[error.name].field
    if field is None:
        return _renamed(config_type, str(error))
    value = error.value if isinstance(error.value, str) else text_of(field.setting, error.value)
    return (
        f"{values[field.name].place}: {field.name}={_quoted(field, value)} is not allowed:"
        f" {_renamed(config_type, error.allowed)}"
    )


def _renamed(config_type: type[Any], text: str) -> str:
    return renamed({field.field: field.name for field in fields_of(config_type)}, text)


def _quoted(field: Field, value: object) -> str:
    if field.setting.kind is Kind.SECRET:
        return repr(HIDDEN)  # also for a number or list from a file
    return repr(_without_secrets(field, value) if isinstance(value, str) else value)


def _without_secrets(field: Field, text: str) -> str:
    match field.setting.kind:
        case Kind.SECRET:
            return HIDDEN if text else ""
        case Kind.STORE:
            return redact_url(text)
        case _:
            return text
