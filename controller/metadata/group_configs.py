"""Group configs with Kafka's names, types, defaults and limits, and with documentation.

Groups do not have to exist to have configs. If a config is not set, a setting of the coordinating
broker applies. Members learn about changes in the response to their next heartbeat.
"""

import difflib
from collections.abc import Mapping
from typing import Final

from penstock.controller.metadata.kafka_config import KafkaConfig
from penstock.controller.metadata.topic_configs import ConfigType

CONSUMER_SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
CONSUMER_HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"
SHARE_RECORD_LOCK_DURATION: Final = "share.record.lock.duration.ms"
SHARE_AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
SHARE_ISOLATION_LEVEL: Final = "share.isolation.level"
STREAMS_SESSION_TIMEOUT: Final = "streams.session.timeout.ms"
STREAMS_HEARTBEAT_INTERVAL: Final = "streams.heartbeat.interval.ms"
STREAMS_STANDBY_REPLICAS: Final = "streams.num.standby.replicas"
STREAMS_REBALANCE_DELAY: Final = "streams.initial.rebalance.delay.ms"
GROUP_NAME_CHARS_MAX: Final = 32_767
"""Maximum length of an id in Kafka's protocol."""

DURATION_PREFIX: Final = "by_duration:"
DURATION_PATTERN: Final = (
    r"\+?[pP](?=[0-9tT+])(?:\+?(?P<days>[0-9]{1,9})[dD])?"
    r"(?:[tT](?=[0-9+])(?:\+?(?P<hours>[0-9]{1,9})[hH])?(?:\+?(?P<minutes>[0-9]{1,9})[mM])?"
    r"(?:\+?(?P<seconds>[0-9]{1,12})(?:[.,](?P<fraction>[0-9]{0,9}))?[sS])?)?"
)
"""A non-negative ISO 8601 duration in the syntax of Java's `Duration.parse`."""


def _int(name: str, default: int, doc: str, *, low: int = 1) -> KafkaConfig:
    return KafkaConfig(name, ConfigType.INT, str(default), doc, low)


_ALL: Final = (
    _int(
        CONSUMER_SESSION_TIMEOUT,
        45_000,
        "How long a member of a consumer group may be silent before its partitions are reassigned.",
    ),
    _int(
        CONSUMER_HEARTBEAT_INTERVAL,
        5_000,
        "How often members of a consumer group send heartbeats.",
    ),
    _int(
        SHARE_SESSION_TIMEOUT,
        45_000,
        "How long a member of a share group may be silent before its partitions are reassigned.",
    ),
    _int(SHARE_HEARTBEAT_INTERVAL, 5_000, "How often members of a share group send heartbeats."),
    _int(
        SHARE_RECORD_LOCK_DURATION,
        30_000,
        "How long a record that a consumer of a share group has acquired is locked.",
        low=1_000,
    ),
    KafkaConfig(
        SHARE_AUTO_OFFSET_RESET,
        ConfigType.STRING,
        "latest",
        "Where a share group begins to read a partition: earliest, latest, or"
        " by_duration:PnDTnHnMn.nS for records that are no older than this.",
        choices=("earliest", "latest"),
        pattern=DURATION_PREFIX + DURATION_PATTERN,
        wanted=(
            "The value must be either 'earliest', 'latest' or of the format"
            " 'by_duration:<PnDTnHnMn.nS>'."
        ),
    ),
    KafkaConfig(
        SHARE_ISOLATION_LEVEL,
        ConfigType.STRING,
        "read_uncommitted",
        "Whether a share group receives records of open and aborted transactions.",
        choices=("read_committed", "read_uncommitted"),
    ),
    _int(
        STREAMS_SESSION_TIMEOUT,
        45_000,
        "How long a member of a streams group may be silent before its tasks are reassigned.",
    ),
    _int(
        STREAMS_HEARTBEAT_INTERVAL, 5_000, "How often members of a streams group send heartbeats."
    ),
    _int(
        STREAMS_STANDBY_REPLICAS,
        0,
        "How many other processes keep a copy of the state of each task.",
        low=0,
    ),
    _int(
        STREAMS_REBALANCE_DELAY,
        3_000,
        "How long the first assignment of an empty streams group waits for more members.",
        low=0,
    ),
)

GROUP_CONFIGS: Final[Mapping[str, KafkaConfig]] = {config.name: config for config in _ALL}

LONGER_THAN: Final = (
    (CONSUMER_SESSION_TIMEOUT, CONSUMER_HEARTBEAT_INTERVAL),
    (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL),
    (STREAMS_SESSION_TIMEOUT, STREAMS_HEARTBEAT_INTERVAL),
)
"""Pairs of configs; the first one must be larger than the second."""


def problem(name: str, value: str) -> str:
    """Return the reason why a group cannot have this config, or "" if it can. The error for an
    unknown name suggests the most similar known name.
    """
    config = GROUP_CONFIGS.get(name)
    if config is not None:
        return config.problem(value)
    near = difflib.get_close_matches(name[:100], GROUP_CONFIGS, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"Unknown group config name: {name[:100]}{hint}"


def canonical(name: str, value: str) -> str:
    """Return a valid value in its stored form."""
    return GROUP_CONFIGS[name].canonical(value)


def conflict(configs: Mapping[str, str]) -> str:
    """Return the reason why these configs of one group are incompatible, or "" if they are
    compatible. Only configs that are set are compared, because the others depend on the broker.
    """
    for longer, shorter in LONGER_THAN:
        both = configs.get(longer), configs.get(shorter)
        if both[0] is not None and both[1] is not None and int(both[0]) <= int(both[1]):
            return f"{longer} must be greater than {shorter}"
    return ""
