"""Settings refuse what can not work and say what can; log lines about bad peers are limited."""

import pytest

from broker.config import BrokerConfig, ConfigInvalid
from broker.log_limit import LogLimit


def test_environment_is_read_by_field_and_overridden() -> None:
    environment = {
        "PENSTOCK_LISTEN_PORT": "0",
        "PENSTOCK_CONTROLLERS": "a:1, b:2",
        "PENSTOCK_AUTO_CREATE_TOPICS_ENABLE": "False",
        "PENSTOCK_RACK": "r1",
        "PENSTOCK_NODE_ID": "7",
    }
    config = BrokerConfig.from_environment(environment, node_id=8)
    assert (config.listen_port, config.controllers, config.auto_create_topics_enable) == (0, ("a:1", "b:2"), False)
    assert (config.rack, config.node_id) == ("r1", 8)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PENSTOCK_LISTEN_PORT", "http", "whole number"),
        ("PENSTOCK_LISTEN_PORT", "70000", "0 to 65535"),
        ("PENSTOCK_AUTO_CREATE_TOPICS_ENABLE", "maybe", "true or false"),
        ("PENSTOCK_CONTROLLERS", " , ", "at least one controller"),
        ("PENSTOCK_BUFFERED_REQUEST_BYTES_MAX", "1024", "104857600"),
    ],
)
def test_bad_value_is_refused_with_what_is_allowed(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigInvalid, match=told):
        BrokerConfig.from_environment({name: value})


def test_log_limit_lets_a_burst_through_then_one_a_second_and_counts_the_rest() -> None:
    limit = LogLimit(burst_count=3)
    assert [limit.take(100.0) for _ in range(6)] == [0, 0, 0, None, None, None]
    assert limit.take(100.5) is None
    assert limit.take(101.0) == 4
    assert limit.take(1_000.0) == 0
    assert sum(limit.take(1_000.0) is not None for _ in range(10)) == 2
