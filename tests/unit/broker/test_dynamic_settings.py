"""Broker settings with dynamic configs from the metadata."""

import pytest

from penstock.base.settings import SettingInvalid
from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import (
    THROTTLES,
    UNUSED,
    BrokerSettings,
    all_settings,
    canonical,
    changed_names,
    conflict,
    is_dynamic,
    problem,
    settle,
)
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

STATIC = BrokerSettings(BrokerConfig(connections_max=50), StreamConfig(), CompactionConfig())
LOW, HIGH = "group.min.session.timeout.ms", "group.max.session.timeout.ms"


def test_the_last_layer_overrides_static_settings() -> None:
    settings, problems = settle(
        STATIC,
        {"max.connections": "60", "num.partitions": "7"},
        {"max.connections": "70", "compaction.interval.ms": "5s"},
    )
    assert problems == {}
    assert (settings.broker.connections_max, settings.broker.num_partitions) == (70, 7)
    assert settings.compaction.interval_ms == 5_000
    names = ["max.connections", "num.partitions", "compaction.interval.ms"]
    assert changed_names(STATIC, settings) == names
    assert settle(STATIC) == (STATIC, {})


def test_dependent_values_change_together() -> None:
    both = {LOW: "2000000", HIGH: "3000000"}
    assert conflict(STATIC, both) == ""
    settings, problems = settle(STATIC, both)
    assert problems == {}
    assert settings.broker.group_max_session_timeout_ms == 3_000_000
    assert conflict(STATIC, {LOW: "2000000"}).startswith(f"{LOW}=2000000 is not allowed: at most")


def test_configs_that_a_broker_rejects_are_skipped_and_reported() -> None:
    """Another version may have written the config."""
    requested = {
        "node.id": "7",
        "no.such": "1",
        "max.connections": "many",
        "num.partitions": "7",
        LOW: "2000000",
    }
    settings, problems = settle(STATIC, requested)
    assert problems.keys() == {"node.id", "no.such", "max.connections", LOW}
    assert changed_names(STATIC, settings) == ["num.partitions"]


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("log.cleaner.backoff.ms", "5s", "5000"),
        ("log.cleaner.io.max.bytes.per.second", "1MiB", "1048576"),
        ("auto.create.topics.enable", "FALSE", "false"),
        ("group.consumer.assignors", "range, uniform", "range,uniform"),
        ("num.io.threads", " 4 ", "4"),
    ],
)
def test_values_are_stored_without_units(name: str, value: str, stored: str) -> None:
    assert problem(name, value) == ""
    assert canonical(name, value) == stored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections", "0"),
        ("max.connections", ""),
        ("log.cleaner.backoff.ms", "5 years"),
        ("group.consumer.migration.policy", "sideways"),
        *((name, "-1") for name in sorted(THROTTLES)),
        ("num.io.threads", "0"),
        ("log.cleaner.io.buffer.load.factor", "half"),
    ],
)
def test_errors_of_invalid_values_list_the_allowed_ones(name: str, value: str) -> None:
    assert problem(name, value).startswith(f"Invalid value {value} for configuration {name}: ")


def test_unused_kafka_configs_change_nothing() -> None:
    values = {name: config.default for name, config in UNUSED.items()}
    assert settle(STATIC, values) == (STATIC, {})
    assert conflict(STATIC, values) == ""
    assert all(map(is_dynamic, UNUSED))
    assert not UNUSED.keys() & all_settings().keys()


def test_every_dynamic_setting_can_change_to_another_value() -> None:
    """`settle` replaces exactly the settings that the definition marks as dynamic."""
    dynamic = [field for field in all_settings().values() if field.setting.is_dynamic]
    assert len(dynamic) > 50
    for field in dynamic:
        text = canonical(field.name, str(field.default).lower().strip("()").replace("'", ""))
        try:
            settings, problems = settle(STATIC, {field.name: text})
        except SettingInvalid:
            pytest.fail(field.name)
        assert problems == {}
        assert settings.value(field) == field.default
