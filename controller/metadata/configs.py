"""Dynamic configs by resource, stored as strings. The config manager has validated them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.controller.metadata.records import ConfigRecord

TOPIC_RESOURCE = 2
"""Resource types use the numbers of Kafka's protocol."""

BROKER_RESOURCE = 4
"""One broker by its node id, or all brokers with an empty name."""

BROKER_LOGGER_RESOURCE = 8
"""The loggers of a broker. The metadata contains no configs for them, because log levels apply to a
process.
"""

CLIENT_METRICS_RESOURCE = 16
"""A client metrics subscription."""

GROUP_RESOURCE = 32

RESOURCE_NOUNS: Final = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    CLIENT_METRICS_RESOURCE: "client metrics",
    GROUP_RESOURCE: "group",
}
"""Names of the resource types in the audit log."""

_NOTHING: Mapping[str, str] = {}


@dataclass(slots=True)
class ConfigsImage:
    _values: dict[tuple[int, str], dict[str, str]] = field(
        default_factory=dict[tuple[int, str], dict[str, str]]
    )
    _counts: Counter[int] = field(default_factory=Counter[int])
    """Number of resources with explicit configs, by type."""

    def get(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        """Return the explicit configs of one resource, without defaults. The defaults are in
        `topic_configs`, `group_configs`, `client_metrics` and the broker settings.
        """
        return self._values.get((resource_type, resource_name), _NOTHING)

    def topic(self, name: str) -> Mapping[str, str]:
        return self.get(TOPIC_RESOURCE, name)

    def group(self, group_id: str) -> Mapping[str, str]:
        return self.get(GROUP_RESOURCE, group_id)

    def client_metrics(self, name: str) -> Mapping[str, str]:
        """Return the configs of a client metrics subscription."""
        return self.get(CLIENT_METRICS_RESOURCE, name)

    def broker(self, name: str) -> Mapping[str, str]:
        """Return the configs of one broker by its node id, or of all brokers for an empty name."""
        return self.get(BROKER_RESOURCE, name)

    def names(self, resource_type: int) -> list[str]:
        """Return the names of all resources of one type that have explicit configs."""
        return [name for kind, name in self._values if kind == resource_type]

    def count(self, resource_type: int) -> int:
        """Return the number of resources of one type that have explicit configs."""
        return self._counts[resource_type]

    def items(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield all explicit configs as (resource type, resource name, config name, value)."""
        for (resource_type, resource_name), values in self._values.items():
            for name, value in values.items():
                yield resource_type, resource_name, name, value

    def set(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        if resource not in self._values:
            self._values[resource] = {}
            self._counts[record.resource_type] += 1
        values = self._values[resource]
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if not values:
            self._remove(resource)

    def remove_topic(self, name: str) -> None:
        self._remove((TOPIC_RESOURCE, name))

    def _remove(self, resource: tuple[int, str]) -> None:
        if self._values.pop(resource, None) is not None:
            self._counts[resource[0]] -= 1
