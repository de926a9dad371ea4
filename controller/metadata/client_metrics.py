"""The configs of a client metrics subscription: names, types, defaults and limits of Kafka.

Brokers with `client.metrics.otlp.endpoint` serve them (`broker.client_metrics`); others do not
collect metrics of clients, as Kafka without a plugin for them.
Limits: patterns have the syntax of RE2; Kafka takes those of Java. Values have the limit of
`topic_configs.VALUE_CHARS_MAX`.
Source: KIP-714, KIP-1000; Kafka 4.2 `ClientMetricsConfigs`.
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
"""As of texts in Kafka's protocol."""
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
"""What a pattern can be about."""


class ConfigInvalid(Exception):
    """Raised for a value that Kafka answers INVALID_CONFIG."""


class RequestInvalid(Exception):
    """Raised for a name or a value that Kafka answers INVALID_REQUEST."""


def canonical(name: str, value: str) -> str:
    """Return a value as it is stored and shown: a number without sign, a list with each item once.
    Raises ConfigInvalid, RequestInvalid.
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
    """Return the regular expressions of a stored `match` by what they are about."""
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
    """Check one `parameter=regular expression`. As in Kafka, `=` at the end is left out."""
    parts = item.rstrip("=").split("=")
    if len(parts) == 2 and parts[0].strip() in _MATCHED:
        try:
            check_regex(parts[1].strip())
        except RegexInvalid:
            pass
        else:
            return
    raise ConfigInvalid(f"Illegal client matching pattern: {item}")
