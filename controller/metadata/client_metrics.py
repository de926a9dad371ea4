"""Configs of client metrics subscriptions, with the names, types, defaults and limits of Kafka
(KIP-714, KIP-1000).

Regular expressions use RE2 syntax instead of Java's.
"""

from collections.abc import Mapping
from typing import Final

from penstock.base.regular_expressions import RegexInvalid, check_regex
from penstock.controller.metadata.kafka_config import KafkaConfig
from penstock.controller.metadata.topic_configs import ConfigType

INTERVAL: Final = "interval.ms"
METRICS: Final = "metrics"
MATCH: Final = "match"
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
NAME_CHARS_MAX: Final = 32_767
"""Maximum length of strings in Kafka's protocol."""
SUBSCRIPTIONS_MAX: Final = 1_000

CLIENT_METRICS_CONFIGS: Final[Mapping[str, KafkaConfig]] = {
    config.name: config
    for config in (
        KafkaConfig(
            INTERVAL,
            ConfigType.INT,
            str(INTERVAL_MS_DEFAULT),
            "Metrics push interval in milliseconds",
        ),
        KafkaConfig(MATCH, ConfigType.LIST, "", "Client match criteria"),
        KafkaConfig(METRICS, ConfigType.LIST, "", "Telemetry metric name prefix list"),
    )
}
_MATCHED: Final = frozenset(
    {
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""Client properties that patterns can match."""


class ConfigInvalid(Exception):
    """Raised for a value that Kafka rejects with INVALID_CONFIG."""


class RequestInvalid(Exception):
    """Raised for a name or a value that Kafka rejects with INVALID_REQUEST."""


def canonical(name: str, value: str) -> str:
    """Return the stored form of a value: numbers without a sign, lists without duplicates. Raises
    ConfigInvalid, RequestInvalid.
    """
    config = CLIENT_METRICS_CONFIGS.get(name)
    if config is None:
        raise RequestInvalid(f"Unknown client metrics configuration: {name[:100]}")
    if problem := config.problem(value):
        raise ConfigInvalid(problem)
    if name == INTERVAL:
        return _interval(int(value))
    items = _items(name, value)
    if name == MATCH:
        for item in items:
            _check_pattern(item)
    return ",".join(items)


def patterns_of(match: str) -> dict[str, str]:
    """Return the regular expressions of a stored `match` config by client property."""
    return dict(_pattern(item) for item in match.split(",") if item)


def _pattern(item: str) -> tuple[str, str]:
    name, _, expression = item.rstrip("=").partition("=")
    return name.strip(), expression.strip()


def _interval(value_ms: int) -> str:
    if not INTERVAL_MS_MIN <= value_ms <= INTERVAL_MS_MAX:
        raise RequestInvalid(
            f"Invalid value {value_ms} for {INTERVAL}, interval must be between"
            f" {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour)"
        )
    return str(value_ms)


def _items(name: str, value: str) -> list[str]:
    items = list(dict.fromkeys(item.strip() for item in value.split(",")))
    if items == [""] and "," not in value:
        return []
    if "" in items:
        raise ConfigInvalid(f"Configuration '{name}' values must not be empty.")
    return items


def _check_pattern(item: str) -> None:
    """Check one `parameter=regular expression`. As in Kafka, a trailing `=` is ignored."""
    parts = item.rstrip("=").split("=")
    if len(parts) == 2 and parts[0].strip() in _MATCHED:
        try:
            check_regex(parts[1].strip())
        except RegexInvalid:
            pass
        else:
            return
    raise ConfigInvalid(f"Illegal client matching pattern: {item}")
