"""The config defaults in DescribeConfigs and in the docs equal the values in use."""

from collections.abc import Callable, Mapping
from uuid import UUID

import pytest

from penstock.base import table_configs as tables
from penstock.base.settings import text_of
from penstock.base.table_configs import TableSettings
from penstock.broker.client_metrics.subscriptions import ClientIdentity, wanted_of
from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import BrokerSettings, all_settings, settle
from penstock.broker.groups.coordinator.configs import group_configs, group_defaults
from penstock.broker.partition.cleaning import CleaningPolicy
from penstock.broker.partition.retention import Retention
from penstock.broker.partition.validation import TopicRules
from penstock.broker.schemas.rules import is_schema_config, schema_rules
from penstock.broker.security.config import SecurityConfig
from penstock.controller.metadata.client_metrics import CLIENT_METRICS_CONFIGS, INTERVAL, METRICS
from penstock.controller.metadata.configs import GROUP_RESOURCE
from penstock.controller.metadata.group_configs import GROUP_CONFIGS
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ConfigRecord
from penstock.controller.metadata.topic_configs import (
    DELETE_GRACE,
    FORK_SOURCE,
    KEY_SCHEMA,
    MIRROR_FINISHED,
    MIRROR_SOURCE,
    NO_EFFECT,
    RECORD_VALIDATION,
    TOPIC_CONFIGS,
    VALIDATES_HEADERS,
    VALUE_SCHEMA,
    SchemaConfigs,
    cleanup_policies,
    open_mirror,
)
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

Configs = Mapping[str, str]


def _rules(configs: Configs) -> TopicRules:
    return TopicRules.from_configs(configs)


def _cleaning(configs: Configs) -> CleaningPolicy | None:
    return CleaningPolicy.from_configs({"cleanup.policy": "compact"} | configs)


OF_TOPICS: dict[str, tuple[Callable[[Configs], object], str]] = {
    "cleanup.policy": (cleanup_policies, "compact"),
    "delete.retention.ms": (_cleaning, "1"),
    "max.compaction.lag.ms": (_cleaning, "1"),
    "max.message.bytes": (lambda configs: _rules(configs).message_bytes_max, "1"),
    "message.timestamp.after.max.ms": (lambda it: _rules(it).timestamp_after_max_ms, "1"),
    "message.timestamp.before.max.ms": (lambda it: _rules(it).timestamp_before_max_ms, "1"),
    "message.timestamp.type": (lambda it: _rules(it).is_log_append_time, "LogAppendTime"),
    "min.cleanable.dirty.ratio": (_cleaning, "0.1"),
    "min.compaction.lag.ms": (_cleaning, "1"),
    "retention.bytes": (Retention.from_configs, "1"),
    "retention.ms": (Retention.from_configs, "1"),
    RECORD_VALIDATION: (lambda it: _rules(it).validation, VALIDATES_HEADERS),
    MIRROR_SOURCE: (open_mirror, "cluster/topic"),
    MIRROR_FINISHED: (lambda it: open_mirror({MIRROR_SOURCE: "s"} | it), "true"),
    tables.ENABLE: (TableSettings.from_configs, "true"),
    tables.NAME: (TableSettings.from_configs, "sales.orders"),
    tables.FORMAT: (TableSettings.from_configs, "parquet"),
    tables.SCHEMA: (TableSettings.from_configs, "raw"),
    tables.PARTITION_BY: (TableSettings.from_configs, "day(ts)"),
    tables.MODE: (TableSettings.from_configs, "upsert"),
    tables.COMMIT_INTERVAL: (TableSettings.from_configs, "1000"),
    tables.COMPACT: (TableSettings.from_configs, "false"),
    tables.SNAPSHOT_RETENTION: (TableSettings.from_configs, "7200000"),
    tables.ORPHAN_RETENTION: (TableSettings.from_configs, "604800000"),
    tables.MASK: (TableSettings.from_configs, "email=hash"),
    tables.UNWRAP: (TableSettings.from_configs, "debezium"),
}
"""By config name: the code that reads the config, and a value other than the default."""
ELSEWHERE = {
    "compression.type": "only 'producer' has an effect",
    "remote.storage.enable": "has one value",
    FORK_SOURCE: "is read where it is set",
    DELETE_GRACE: "tests/unit/controller/test_controller_deleted_topics.py",
}


def test_every_topic_config_is_tested_or_exempt() -> None:
    effective = {
        name
        for name, config in TOPIC_CONFIGS.items()
        if not config.doc.startswith(NO_EFFECT) and not is_schema_config(name)
    }
    assert effective == OF_TOPICS.keys() | ELSEWHERE


@pytest.mark.parametrize("name", OF_TOPICS)
def test_topics_without_a_config_use_the_default(name: str) -> None:
    read, other = OF_TOPICS[name]
    default = TOPIC_CONFIGS[name].default
    assert read({}) == read({name: default})
    assert read({}) != read({name: other})


@pytest.mark.parametrize("schema", [KEY_SCHEMA, VALUE_SCHEMA])
def test_topics_without_a_schema_config_use_the_default(schema: SchemaConfigs) -> None:
    needed = {schema.schema: '{"type": "object"}'}
    registered = {schema.is_registered: "true"}
    for name in schema.names:
        default = {name: TOPIC_CONFIGS[name].default}
        for others in ({}, needed, registered):
            assert schema_rules(others) == schema_rules(default | others)


@pytest.mark.parametrize("name", GROUP_CONFIGS)
def test_groups_without_a_config_use_the_default(name: str) -> None:
    """The docs list the group defaults; brokers derive them from their own settings."""
    default, config = GROUP_CONFIGS[name].default, BrokerConfig()
    assert group_defaults(config)[name] == default
    image = MetadataImage()
    image.apply_all([ConfigRecord(GROUP_RESOURCE, "set", name, default)])
    configs = group_configs(image, config)
    assert configs.of("set") == configs.of("unset")


def test_subscriptions_without_an_interval_use_the_default() -> None:
    instance = UUID(int=1)
    identity = ClientIdentity("c", str(instance), "software", "1", "127.0.0.1", "9")
    default = CLIENT_METRICS_CONFIGS[INTERVAL].default
    found = [
        wanted_of([{METRICS: "*", **interval}], identity, instance)
        for interval in ({}, {INTERVAL: default})
    ]
    assert found[0] == found[1]


STATIC = BrokerSettings(BrokerConfig(), StreamConfig(), CompactionConfig(), SecurityConfig())


@pytest.mark.parametrize("name", all_settings())
def test_brokers_without_a_setting_use_the_default(name: str) -> None:
    """Includes settings whose default comes from a dynamic config."""
    field = all_settings()[name]
    assert STATIC.value(field) == field.default
    if field.setting.is_dynamic:
        settled, problems = settle(STATIC, {name: text_of(field.setting, field.default)})
        assert (settled, problems) == (STATIC, {})
