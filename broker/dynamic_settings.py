"""Broker settings that change at runtime through broker configs in the metadata, like Kafka's
`DynamicBrokerConfig` (KIP-226).

The file, flags and environment variables set the base values. Cluster-wide broker configs override
them, and the broker's own configs override both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeVar

from penstock.base.settings import Field, SettingInvalid, fields_of, parse, renamed, text_of
from penstock.broker.config import BrokerConfig
from penstock.broker.listener_settings import listener_field
from penstock.broker.security.config import SecurityConfig
from penstock.controller.metadata.kafka_config import KafkaConfig
from penstock.controller.metadata.topic_configs import (
    BROKER_SYNONYMS,
    NO_EFFECT,
    TOPIC_CONFIGS,
    ConfigType,
)
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

_Part = TypeVar("_Part", BrokerConfig, StreamConfig, CompactionConfig, SecurityConfig)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """All settings of one broker."""

    broker: BrokerConfig
    stream: StreamConfig
    compaction: CompactionConfig
    security: SecurityConfig = field(default_factory=SecurityConfig)

    @property
    def listener_values(self) -> dict[str, object]:
        """Return the listener settings by name."""
        return {**dict(self.broker.listener_values), **dict(self.security.listener_values)}

    def default(self, setting: Field) -> object:
        """Return the default value of the setting."""
        if setting in fields_of(StreamConfig) and setting.field in self.stream.defaults:
            return self.stream.defaults[setting.field]
        return setting.default

    def value(self, setting: Field) -> object:
        if listener_field(setting.name) is not None:
            return self.listener_values.get(setting.name)
        return next(
            getattr(part, setting.field)
            for part in (self.broker, self.stream, self.compaction, self.security)
            if setting in fields_of(type(part))
        )


@cache
def all_settings() -> Mapping[str, Field]:
    """Return all broker settings by name."""
    parts = BrokerConfig, StreamConfig, CompactionConfig, SecurityConfig
    return {setting.name: setting for part in parts for setting in fields_of(part)}


_NO_COPIES: Final = "No effect, accepted for Kafka tools: no data is moved between brokers."
_NO_THREADS: Final = "No effect, accepted for Kafka tools: a broker has one event loop."
_NO_BUFFERS: Final = (
    "No effect, accepted for Kafka tools: one pass runs at a time, in memory limited by"
    " `log.cleaner.dedupe.buffer.size`."
)


_NO_TIERS: Final = "No effect, accepted for Kafka tools: all data is in the object store."


def _unused(
    name: str, kind: ConfigType, default: str, doc: str, low: int | None = None
) -> KafkaConfig:
    return KafkaConfig(name, kind, default, doc, low)


def _unused_of_topics() -> Iterator[KafkaConfig]:
    """Yield the broker-level defaults of topic configs that have no effect, with their lower
    bounds.
    """
    for name, config in TOPIC_CONFIGS.items():
        has_effect = not config.doc.startswith(NO_EFFECT) and name != "compression.type"
        if name in BROKER_SYNONYMS and not has_effect:
            low = int(config.low) if config.type in {ConfigType.INT, ConfigType.LONG} else None
            low = low if config.also is None else min(low or 0, config.also)
            yield KafkaConfig(
                BROKER_SYNONYMS[name],
                config.type,
                config.default,
                config.doc,
                low,
                choices=config.choices,
            )


_THROTTLES: Final = tuple(
    _unused(name, ConfigType.LONG, "9223372036854775807", _NO_COPIES, 0)
    for name in (
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)
_NO_REPORTERS: Final = "No effect, accepted for Kafka tools: Prometheus reads the metrics."
_REMOTE_SIZES: Final = (
    ("remote.log.index.file.cache.total.size.bytes", "1073741824"),
    ("remote.log.manager.copy.max.bytes.per.second", "9223372036854775807"),
    ("remote.log.manager.fetch.max.bytes.per.second", "9223372036854775807"),
)
_REMOTE_POOLS: Final = (
    ("remote.log.manager.copier.thread.pool.size", "10"),
    ("remote.log.manager.expiration.thread.pool.size", "10"),
    ("remote.log.manager.follower.thread.pool.size", "2"),
    ("remote.log.reader.threads", "10"),
)
THROTTLES: Final = frozenset(config.name for config in _THROTTLES)
"""Kafka reports these settings as read-only, and only if they are set."""

UNUSED: Final[Mapping[str, KafkaConfig]] = {
    config.name: config
    for config in (
        *_THROTTLES,
        *_unused_of_topics(),
        _unused("metric.reporters", ConfigType.LIST, "", _NO_REPORTERS),
        _unused("remote.fetch.max.wait.ms", ConfigType.INT, "500", _NO_TIERS, 1),
        _unused("remote.list.offsets.request.timeout.ms", ConfigType.LONG, "30000", _NO_TIERS, 1),
        *(_unused(name, ConfigType.LONG, default, _NO_TIERS, 1) for name, default in _REMOTE_SIZES),
        *(_unused(name, ConfigType.INT, default, _NO_TIERS, 1) for name, default in _REMOTE_POOLS),
        _unused("background.threads", ConfigType.INT, "10", _NO_THREADS, 1),
        _unused("num.io.threads", ConfigType.INT, "8", _NO_THREADS, 1),
        _unused("num.network.threads", ConfigType.INT, "3", _NO_THREADS, 1),
        _unused("num.recovery.threads.per.data.dir", ConfigType.INT, "2", _NO_THREADS, 1),
        _unused("num.replica.fetchers", ConfigType.INT, "1", _NO_COPIES),
        _unused("log.cleaner.threads", ConfigType.INT, "1", _NO_BUFFERS, 0),
        _unused("log.cleaner.io.buffer.size", ConfigType.INT, "524288", _NO_BUFFERS, 0),
        _unused("log.cleaner.io.buffer.load.factor", ConfigType.DOUBLE, "0.9", _NO_BUFFERS),
    )
}


def setting_of(name: str) -> Field | None:
    """Return the broker setting with this name, which may be a listener setting."""
    return all_settings().get(name) or listener_field(name)


def known_setting(name: str) -> Field:
    """Return the setting with this name, which must exist."""
    found = setting_of(name)
    assert found is not None, name
    return found


def is_dynamic(name: str) -> bool:
    """Return whether the name can be a broker config."""
    found = setting_of(name)
    return name in UNUSED or (found is not None and found.setting.is_dynamic)


def problem(name: str, value: str) -> str:
    """Return the reason why the value of a dynamic config is invalid for a broker, or "" if it is
    valid.
    """
    if name in UNUSED:
        return UNUSED[name].problem(value)
    try:
        parse(known_setting(name).setting, value)
    except SettingInvalid as error:
        return f"Invalid value {value} for configuration {name}: allowed is {error.allowed}"
    return ""


def canonical(name: str, value: str) -> str:
    """Convert a valid value to its stored form, which has no unit."""
    if name in UNUSED:
        return UNUSED[name].canonical(value)
    setting = known_setting(name).setting
    return text_of(setting, parse(setting, value))


def settle(
    static: BrokerSettings, *layers: Mapping[str, str]
) -> tuple[BrokerSettings, dict[str, str]]:
    """Apply layers of configs, later ones over earlier ones. Return the resulting valid settings,
    and the reason for each ignored config, by name.

    A value that this version does not accept is ignored and reported, so that it cannot prevent a
    broker from running.
    """
    wanted: dict[str, str] = {}
    for layer in layers:
        wanted |= layer
    problems: dict[str, str] = {}
    for name, value in wanted.items():
        if not is_dynamic(name):
            problems[name] = "this broker cannot change it while it runs"
        elif found := problem(name, value):
            problems[name] = found
    left = {
        name: value
        for name, value in sorted(wanted.items())
        if name not in problems and name not in UNUSED
    }
    settings = static
    try:
        return _with(settings, left), problems
    except (SettingInvalid, ValueError):
        pass  # some configs are incompatible with each other, so apply them one by one
    is_changed = True
    while is_changed:
        is_changed = False
        for name, value in list(left.items()):
            try:
                settings = _with(settings, {name: value})
            except (SettingInvalid, ValueError) as error:
                problems[name] = _message(error)
                continue
            problems.pop(name, None)
            del left[name]
            is_changed = True
    return settings, problems


def conflict(static: BrokerSettings, *layers: Mapping[str, str]) -> str:
    """Return the reason why these individually valid configs are incompatible with each other, or
    "" if they are compatible.
    """
    wanted: dict[str, str] = {}
    for layer in layers:
        wanted |= layer
    usable = {
        name: value
        for name, value in wanted.items()
        if name not in UNUSED and is_dynamic(name) and not problem(name, value)
    }
    try:
        _with(static, usable)
    except (SettingInvalid, ValueError) as error:
        return _message(error)
    return ""


def _with(settings: BrokerSettings, values: Mapping[str, str]) -> BrokerSettings:
    """Return the settings with these changes. Raises SettingInvalid or ValueError."""
    return BrokerSettings(
        _with_listeners(_changed(settings.broker, values), values),
        _changed(settings.stream, values),
        _changed(settings.compaction, values),
        _changed(settings.security, values),
    )


def _changed(part: _Part, values: Mapping[str, str]) -> _Part:
    changes: dict[str, Any] = {
        item.field: parse(item.setting, values[item.name])
        for item in fields_of(type(part))
        if item.name in values
    }
    return replace(part, **changes) if changes else part


def _with_listeners(broker: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """Apply listener settings."""
    own = dict(broker.listener_values)
    for name, value in values.items():
        field = listener_field(name)
        if field is not None:
            own[name] = int(str(parse(field.setting, value)))
    found = tuple(sorted(own.items()))
    return broker if found == broker.listener_values else replace(broker, listener_values=found)


def _message(error: Exception) -> str:
    names = {item.field: name for name, item in all_settings().items()}
    return renamed(names, str(error))


def changed_names(before: BrokerSettings, after: BrokerSettings) -> Sequence[str]:
    """Return the names of the settings that differ."""
    changed = [
        name for name, item in all_settings().items() if before.value(item) != after.value(item)
    ]
    differing = set(before.broker.listener_values) ^ set(after.broker.listener_values)
    return [*changed, *sorted({name for name, _ in differing})]
