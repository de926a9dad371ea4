"""Typed group configs, with the broker settings as defaults.

Use `group_configs(image, config).of(group_id)`. Values in the metadata may exceed the limits of
this broker, because brokers may have different limits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.broker.config import BrokerConfig
from penstock.controller.metadata import group_configs as known
from penstock.controller.metadata.configs import ConfigsImage
from penstock.controller.metadata.group_configs import GROUP_CONFIGS
from penstock.controller.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True)
class InitialOffset:
    """Where a share group starts to read a partition: at the start, at the end, or at the first
    record that is not older than a duration.
    """

    is_earliest: bool = False
    duration_ms: int | None = None
    """None to read from the start or the end."""


LATEST: Final = InitialOffset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int
    share_session_timeout_ms: int
    share_heartbeat_interval_ms: int
    share_record_lock_duration_ms: int
    share_auto_offset_reset: InitialOffset = LATEST
    share_is_read_committed: bool = False
    streams_session_timeout_ms: int
    streams_heartbeat_interval_ms: int
    streams_num_standby_replicas: int
    streams_initial_rebalance_delay_ms: int


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A group config whose limits are broker settings."""

    config: str
    low: str | None
    high: str


def _bounded(config: str) -> _Bounded:
    kind, _, rest = config.partition(".")
    return _Bounded(config, f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}")


_BOUNDED: Final = (
    _bounded(known.CONSUMER_HEARTBEAT_INTERVAL),
    _bounded(known.CONSUMER_SESSION_TIMEOUT),
    _bounded(known.SHARE_HEARTBEAT_INTERVAL),
    _bounded(known.SHARE_SESSION_TIMEOUT),
    _bounded(known.SHARE_RECORD_LOCK_DURATION),
    _bounded(known.STREAMS_HEARTBEAT_INTERVAL),
    _bounded(known.STREAMS_SESSION_TIMEOUT),
    _Bounded(known.STREAMS_STANDBY_REPLICAS, None, "group.streams.max.standby.replicas"),
)
"""Sorted in the order in which Kafka checks these configs."""
_WITHOUT_SETTING: Final = frozenset({known.SHARE_AUTO_OFFSET_RESET, known.SHARE_ISOLATION_LEVEL})
"""Configs that have no broker setting."""


def _setting(config: BrokerConfig, name: str) -> int:
    value = getattr(config, name.replace(".", "_"))
    assert isinstance(value, int)
    return value


def group_defaults(config: BrokerConfig) -> dict[str, str]:
    """Return the defaults of group configs on this broker."""
    return {
        name: known_config.default
        if name in _WITHOUT_SETTING
        else str(_setting(config, f"group.{name}"))
        for name, known_config in GROUP_CONFIGS.items()
    }


def group_problem(config: BrokerConfig, configs: Mapping[str, str]) -> str:
    """Return Kafka's message for invalid configs, or "" if the group can have these configs.

    configs: all configs of the group, after the change.
    """
    for name, value in configs.items():
        if found := known.problem(name, value):
            return found
    for bounded in _BOUNDED:
        if bounded.config in configs and (found := _problem_of_size(bounded, config, configs)):
            return found
    used = {**group_defaults(config), **configs}
    for longer, shorter in known.LONGER_THAN:
        if int(used[longer]) <= int(used[shorter]) and {longer, shorter} & configs.keys():
            return f"{longer} must be greater than {shorter}"
    return ""


def _problem_of_size(bounded: _Bounded, config: BrokerConfig, configs: Mapping[str, str]) -> str:
    value = int(configs[bounded.config])
    if bounded.low is not None and value < _setting(config, bounded.low):
        return f"{bounded.config} must be greater than or equal to {bounded.low}"
    if value > _setting(config, bounded.high):
        return f"{bounded.config} must be less than or equal to {bounded.high}"
    return ""


class GroupConfigs:
    """The configs of all groups, with this broker's defaults."""

    def __init__(self, configs: ConfigsImage, config: BrokerConfig) -> None:
        self._configs = configs
        self._config = config

    def of(self, group_id: str) -> GroupConfig:
        own = self._configs.group(group_id)
        config = self._config

        def number(name: str) -> int:
            return int(own[name]) if name in own else _setting(config, f"group.{name}")

        isolation = known.SHARE_ISOLATION_LEVEL
        return GroupConfig(
            consumer_session_timeout_ms=number(known.CONSUMER_SESSION_TIMEOUT),
            consumer_heartbeat_interval_ms=number(known.CONSUMER_HEARTBEAT_INTERVAL),
            share_session_timeout_ms=number(known.SHARE_SESSION_TIMEOUT),
            share_heartbeat_interval_ms=number(known.SHARE_HEARTBEAT_INTERVAL),
            share_record_lock_duration_ms=number(known.SHARE_RECORD_LOCK_DURATION),
            share_auto_offset_reset=parse_initial_offset(
                own.get(known.SHARE_AUTO_OFFSET_RESET, "")
            ),
            streams_session_timeout_ms=number(known.STREAMS_SESSION_TIMEOUT),
            streams_heartbeat_interval_ms=number(known.STREAMS_HEARTBEAT_INTERVAL),
            streams_num_standby_replicas=number(known.STREAMS_STANDBY_REPLICAS),
            streams_initial_rebalance_delay_ms=number(known.STREAMS_REBALANCE_DELAY),
            share_is_read_committed=own.get(isolation) == "read_committed",
        )


def group_configs(image: MetadataImage, config: BrokerConfig) -> GroupConfigs:
    """Return the configs of all groups. This is cheap; do not keep the result, because the image
    and the settings change.
    """
    return GroupConfigs(image.configs, config)


def parse_initial_offset(value: str) -> InitialOffset:
    """Parse a valid value of `share.auto.offset.reset`. An empty value means the default."""
    found = re.fullmatch(known.DURATION_PREFIX + known.DURATION_PATTERN, value)
    if found is None:
        return InitialOffset(is_earliest=value == "earliest")
    days, hours, minutes, seconds = (
        int(found[unit] or 0) for unit in ("days", "hours", "minutes", "seconds")
    )
    fraction_ms = int(f"{found['fraction'] or '':0<3}"[:3])
    whole_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return InitialOffset(duration_ms=whole_s * 1_000 + fraction_ms)
