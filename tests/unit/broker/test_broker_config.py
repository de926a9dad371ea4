"""Invalid settings are rejected with the allowed values; log lines about misbehaving peers are
rate-limited.
"""

import pytest

from penstock.base.log_limit import LogLimit
from penstock.base.settings import SettingInvalid
from penstock.broker.config import BrokerConfig


@pytest.mark.parametrize(
    ("settings", "name", "told"),
    [
        ({"listeners": ("127.0.0.1:70000",)}, "listeners", "0 to 65535"),
        ({"listeners": ()}, "listeners", "at least one"),
        ({"controllers": ()}, "controllers", "at least one controller"),
        ({"buffered_request_bytes_max": 2048}, "buffered_request_bytes_max", "104857600"),
        (
            {"advertised_listeners": ("h:1", "PLAINTEXT://i:1")},
            "advertised_listeners",
            "one address for each",
        ),
        ({"group_min_session_timeout_ms": 2_000_000}, "group_min_session_timeout_ms", "at most"),
        (
            {"client_metrics_otlp_endpoint": "collector:4318"},
            "client_metrics_otlp_endpoint",
            "http://HOST:PORT",
        ),
        (
            {"client_metrics_otlp_endpoint": "http://user:word@collector:4318"},
            "client_metrics_otlp_endpoint",
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
    ],
)
def test_unsupported_options_are_named_in_the_error(
    settings: dict[str, object], name: str, told: str
) -> None:
    with pytest.raises(SettingInvalid, match=told) as caught:
        BrokerConfig(**settings)
    assert caught.value.name == name


def test_listeners_without_an_advertised_address_leave_the_host_to_the_client() -> None:
    config = BrokerConfig(
        node_id=4,
        listeners=("A://:1", "b://0.0.0.0:0", "[::1]:9"),
        advertised_listeners=("b://{id}.x:0", "[::2]:{port+1}"),
    )
    reported = config.advertised("10.0.0.1", {"A": 1, "B": 77, "PLAINTEXT": 9})
    assert [(one.name, one.host, one.port) for one in reported] == [
        ("A", "", 1),
        ("B", "4.x", 77),
        ("PLAINTEXT", "::2", 10),
    ]
    assert reported[2].address == "[::2]:10"


def test_the_log_limit_allows_a_burst_then_one_line_per_second() -> None:
    limit = LogLimit(burst_count=3)
    assert [limit.take(100.0) for _ in range(6)] == [0, 0, 0, None, None, None]
    assert limit.take(100.5) is None
    assert limit.take(101.0) == 4
    assert limit.take(1_000.0) == 0
    assert sum(limit.take(1_000.0) is not None for _ in range(10)) == 2
