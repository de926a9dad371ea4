"""A config entry in responses of DescribeConfigs and CreateTopics (KIP-226)."""

from dataclasses import dataclass
from typing import Final

from penstock.controller.metadata.topic_configs import ConfigType

DYNAMIC_TOPIC: Final = 1
DYNAMIC_BROKER: Final = 2
DYNAMIC_DEFAULT_BROKER: Final = 3
STATIC_BROKER: Final = 4
DEFAULT: Final = 5
DYNAMIC_BROKER_LOGGER: Final = 6
DYNAMIC_CLIENT_METRICS: Final = 7
DYNAMIC_GROUP: Final = 8
"""Numbers of Kafka's DescribeConfigsResponse.ConfigSource."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config entry. synonyms: all values of the config as (name, value, source), with the
    effective one first; empty if the default is null. has_synonyms: whether DescribeConfigs
    includes them.
    """

    name: str
    synonyms: tuple[tuple[str, str, int], ...]
    type: ConfigType
    doc: str
    is_read_only: bool = False
    is_sensitive: bool = False
    has_synonyms: bool = True

    @property
    def value(self) -> str | None:
        return self.synonyms[0][1] if self.synonyms else None

    @property
    def source(self) -> int:
        return self.synonyms[0][2] if self.synonyms else DEFAULT


def synonyms_of(name: str, *values: tuple[str | None, int]) -> tuple[tuple[str, str, int], ...]:
    """Return the synonyms of a config, given as (value, source), or None if it has no value."""
    return tuple((name, value, source) for value, source in values if value is not None)
