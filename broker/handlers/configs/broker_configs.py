"""Broker configs, for DescribeConfigs and the two APIs that alter configs.

As in Kafka, a broker describes and alters only its own configs and the cluster-wide ones (with the
empty name), so that it can validate values against its own settings.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.base.listeners import PLAINTEXT
from penstock.base.settings import Field, Kind, text_of
from penstock.broker.dynamic_settings import (
    THROTTLES,
    UNUSED,
    all_settings,
    canonical,
    conflict,
    is_dynamic,
    known_setting,
    problem,
    setting_of,
)
from penstock.broker.handlers.configs.config_entry import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    STATIC_BROKER,
    ConfigEntry,
    synonyms_of,
)
from penstock.broker.listener_settings import listener_field
from penstock.broker.requests.node import Node
from penstock.controller.metadata.topic_configs import BROKER_SYNONYMS, ConfigType

_TYPES: Final = {
    Kind.BOOL: ConfigType.BOOLEAN,
    Kind.INT: ConfigType.LONG,
    Kind.DURATION: ConfigType.LONG,
    Kind.BYTES: ConfigType.LONG,
    Kind.LIST: ConfigType.LIST,
    Kind.LISTENERS: ConfigType.LIST,
    Kind.SECRET: ConfigType.PASSWORD,
}
_NULLABLE: Final = frozenset({Kind.TEXT, Kind.PATH})
"""Setting types that Kafka reports as null if they have no value."""
_AUTHORIZER: Final = "authorizer.class.name"
ALL_BROKERS: Final = ""


class BrokerConfigRefused(Exception):
    """Raised with the reason if broker configs cannot be changed. The client receives
    INVALID_REQUEST, as in Kafka.
    """


# --- describing -----------------------------------------------------------------------------------


def described_name_problem(node: Node, name: str) -> str:
    """Return the reason why this broker cannot describe the given broker's configs, or "" if it
    can.
    """
    if name in {ALL_BROKERS, str(node.node_id)}:
        return ""
    if not _is_integer(name):
        return f"Broker id must be an integer, but it is: {name[:100]}"
    return (
        f"Unexpected broker id, expected {node.node_id} or empty string, but received {name[:100]}"
    )


def broker_entries(node: Node) -> list[ConfigEntry]:
    """Return all settings of this broker, including settings that are set but have no effect."""
    own, common = broker_layers(node)
    return [
        *(_entry(node, field, own, common) for field in all_settings().values()),
        *(_listener_entry(node, name, own, common) for name in _of_listeners(node, own, common)),
        *(_unused_entry(name, own, common) for name in UNUSED if name in own or name in common),
    ]


def common_entries(node: Node) -> list[ConfigEntry]:
    """Return the cluster-wide broker configs."""
    common = node.image.configs.broker(ALL_BROKERS)
    return [
        _unused_entry(name, {}, common)
        if name in UNUSED
        else _entry(node, known_setting(name), {}, common, has_static=False)
        for name, value in common.items()
        if is_dynamic(name) and not problem(name, value)
    ]


def broker_layers(node: Node) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the configs of this broker and the cluster-wide configs."""
    configs = node.image.configs
    return configs.broker(str(node.node_id)), configs.broker(ALL_BROKERS)


def _entry(
    node: Node,
    field: Field,
    own: Mapping[str, str],
    common: Mapping[str, str],
    *,
    has_static: bool = True,
) -> ConfigEntry:
    setting, name = field.setting, field.name
    static = _shown(field, node.static_settings.value(field))
    default = _shown(field, node.static_settings.default(field))
    shown = str(node.node_id) if name == "node.id" else static
    dynamic = [
        (layer[name] if name in layer and not problem(name, layer[name]) else None, source)
        for layer, source in ((own, DYNAMIC_BROKER), (common, DYNAMIC_DEFAULT_BROKER))
    ]
    of_process = [(None if static == default else shown, STATIC_BROKER), (default, DEFAULT)]
    synonyms = synonyms_of(name, *dynamic, *(of_process if has_static else ()))
    kind = _TYPES.get(setting.kind, ConfigType.STRING)
    return ConfigEntry(
        name,
        synonyms,
        kind,
        field.doc,
        is_read_only=not setting.is_dynamic,
        is_sensitive=setting.kind is Kind.SECRET,
    )


def _shown(field: Field, value: object) -> str | None:
    """Return a value as Kafka displays it: unset strings as null, and listeners with their
    names.
    """
    setting = field.setting
    if setting.kind is Kind.LISTENERS:
        named = [
            text if "://" in text else f"{PLAINTEXT}://{text}"
            for text in text_of(setting, value).split(",")
            if text
        ]
        return ",".join(named) or None
    is_nullable = setting.kind in _NULLABLE and field.name != _AUTHORIZER
    return text_of(setting, value) or (None if is_nullable else "")


def _of_listeners(node: Node, own: Mapping[str, str], common: Mapping[str, str]) -> list[str]:
    """Return the names of the listener-specific settings that are set."""
    names = {*node.static_settings.listener_values, *own, *common}
    return sorted(name for name in names if listener_field(name) is not None)


def _listener_entry(
    node: Node, name: str, own: Mapping[str, str], common: Mapping[str, str]
) -> ConfigEntry:
    field = known_setting(name)
    static = node.static_settings.value(field)
    synonyms = synonyms_of(
        name,
        (own.get(name), DYNAMIC_BROKER),
        (common.get(name), DYNAMIC_DEFAULT_BROKER),
        (None if static is None else text_of(field.setting, static), STATIC_BROKER),
    )
    return ConfigEntry(
        name,
        synonyms,
        _TYPES.get(field.setting.kind, ConfigType.STRING),
        field.doc,
        is_read_only=not field.setting.is_dynamic,
        is_sensitive=field.setting.kind is Kind.SECRET,
    )


def _unused_entry(name: str, own: Mapping[str, str], common: Mapping[str, str]) -> ConfigEntry:
    known = UNUSED[name]
    synonyms = synonyms_of(
        name, (own.get(name), DYNAMIC_BROKER), (common.get(name), DYNAMIC_DEFAULT_BROKER)
    )
    return ConfigEntry(name, synonyms, known.type, known.doc, is_read_only=name in THROTTLES)


# --- altering -------------------------------------------------------------------------------------


def check_altered_name(node: Node, name: str) -> None:
    """Verify that this broker may change the configs of the given one. Raises
    BrokerConfigRefused.
    """
    if name in {ALL_BROKERS, str(node.node_id)}:
        return
    if not _is_integer(name):
        raise BrokerConfigRefused(f"Node id must be an integer, but it is: {name[:100]}")
    expected = f"expected {node.node_id}, but received {name[:100]}"
    raise BrokerConfigRefused(f"Unexpected broker id, {expected}")


def checked_values(
    node: Node,
    broker: str,
    present: Mapping[str, str],
    values: Sequence[tuple[str, str | None]],
) -> list[tuple[str, str | None]]:
    """Return the values to store for one broker or for the cluster. Raises BrokerConfigRefused.

    present: the current configs, which are kept unless `values` contains them.
    """
    fixed = [name for name, value in values if value is not None and not is_dynamic(name)]
    if fixed:
        shown = ", ".join(name[:100] for name in fixed)
        unknown = [name[:100] for name in fixed if setting_of(name) is None]
        hint = f"; {_hint(unknown[0])}" if unknown else ""
        raise BrokerConfigRefused(f"Cannot update these configs dynamically: Set({shown}){hint}")
    stored = [
        (name, None if value is None else _checked_value(name, value)) for name, value in values
    ]
    changed = {**present, **dict(stored)}
    kept = {name: value for name, value in changed.items() if value is not None}
    own, common = broker_layers(node)
    layers = (kept, own) if broker == ALL_BROKERS else (common, kept)
    if found := conflict(node.static_settings, *layers):
        raise BrokerConfigRefused(found)
    return stored


def _hint(unknown: str) -> str:
    """Return a hint for the error message about an unknown broker config."""
    of_topics = [name for name, synonym in BROKER_SYNONYMS.items() if synonym == unknown]
    if of_topics:
        return f"there are no defaults for all topics: set {of_topics[0]} of each topic"
    return f"there is no setting {unknown}"


def _checked_value(name: str, value: str) -> str:
    if found := problem(name, value):
        raise BrokerConfigRefused(found)
    return canonical(name, value)


def list_default(node: Node, name: str) -> str | None:
    """Return the list to which items are appended if the config is not set, or None if the config
    is not a dynamic list.
    """
    field = all_settings().get(name)
    if field is None or not field.setting.is_dynamic or field.setting.kind is not Kind.LIST:
        return None
    return text_of(field.setting, field.default)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()
