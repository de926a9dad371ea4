"""Group configs as seen by the coordinator."""

import pytest

from penstock.broker.config import BrokerConfig
from penstock.broker.groups.coordinator.configs import (
    InitialOffset,
    group_configs,
    group_defaults,
    group_problem,
    parse_initial_offset,
)
from penstock.controller.metadata.configs import GROUP_RESOURCE
from penstock.controller.metadata.group_configs import GROUP_CONFIGS
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ConfigRecord

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def test_broker_settings_apply_to_groups_without_configs() -> None:
    image = MetadataImage()
    config = BrokerConfig(
        group_consumer_session_timeout_ms=9_000,
        group_consumer_heartbeat_interval_ms=2_000,
        group_share_record_lock_duration_ms=7_000,
    )
    image.apply_all(
        ConfigRecord(GROUP_RESOURCE, "g", name, value)
        for name, value in {
            HEARTBEAT: "3000",
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed",
        }.items()
    )
    configs = group_configs(image, config)
    own, other = configs.of("g"), configs.of("other")
    assert (own.consumer_session_timeout_ms, own.consumer_heartbeat_interval_ms) == (9_000, 3_000)
    assert (own.share_auto_offset_reset.is_earliest, own.share_is_read_committed) == (True, True)
    assert (other.consumer_heartbeat_interval_ms, other.share_record_lock_duration_ms) == (
        2_000,
        7_000,
    )
    assert (other.share_auto_offset_reset, other.share_is_read_committed) == (
        InitialOffset(),
        False,
    )
    assert group_defaults(config)[SESSION] == "9000"


def test_defaults_match_kafka() -> None:
    assert group_defaults(BrokerConfig()) == {
        name: config.default for name, config in GROUP_CONFIGS.items()
    }


@pytest.mark.parametrize(
    ("value", "reset"),
    [
        ("", InitialOffset()),
        ("latest", InitialOffset()),
        ("earliest", InitialOffset(is_earliest=True)),
        ("by_duration:PT0S", InitialOffset(duration_ms=0)),
        ("by_duration:PT1H", InitialOffset(duration_ms=HOUR)),
        ("by_duration:pt+5.5s", InitialOffset(duration_ms=5_500)),
        ("by_duration:PT0.0019S", InitialOffset(duration_ms=1)),
        (
            "by_duration:P2DT3H4M5.678901S",
            InitialOffset(duration_ms=2 * DAY + 3 * HOUR + 4 * MINUTE + 5 * SECOND + 678),
        ),
    ],
)
def test_the_initial_offset_of_share_groups_is_parsed(value: str, reset: InitialOffset) -> None:
    assert parse_initial_offset(value) == reset


def test_limits_of_group_configs_are_broker_settings() -> None:
    config = BrokerConfig(group_consumer_min_session_timeout_ms=1_000)
    assert group_problem(BrokerConfig(), {SESSION: "2000"}).endswith(
        "group.consumer.min.session.timeout.ms"
    )
    assert group_problem(config, {SESSION: "2000"}) == f"{SESSION} must be greater than {HEARTBEAT}"
    assert group_problem(config, {SESSION: "6000"}) == ""
    assert "did you mean" in group_problem(config, {"consumer.session.timeout": "6000"})
