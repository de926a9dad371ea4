"""Option parsing: every error contains the option and the allowed values."""

import pytest

from penstock.testing.options import InvalidOption, Options


def parse(**given: str) -> Options:
    names = ("brokers", "port", "latency", "log_level", "secure")
    return Options.parse(**(dict.fromkeys(names, "") | given))


def test_without_options_the_defaults_apply() -> None:
    assert parse() == Options()


def test_all_options_are_parsed() -> None:
    requested = Options(
        brokers=3,
        port=9092,
        latency_p50_ms=20.0,
        latency_p99_ms=100.0,
        log_level="info",
        secure=True,
    )
    given = {"brokers": "3", "port": "9092", "latency": "20,100", "log_level": "info"}
    assert parse(**given, secure="true") == requested


def test_a_single_latency_value_is_constant() -> None:
    assert (parse(latency="15").latency_p50_ms, parse(latency="15").latency_p99_ms) == (15.0, 15.0)


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("brokers", "0", "--penstock-brokers 0 is not allowed: 1 to 9"),
        ("brokers", "many", "--penstock-brokers many is not allowed: 1 to 9"),
        ("port", "-1", "--penstock-port -1 is not allowed: 0 to"),
        ("port", "65535", "--penstock-port 65535 is not allowed: 0 to"),
        ("latency", "100,20", "--penstock-latency 100,20 is not allowed: P50 or P50,P99"),
        ("latency", "fast", "--penstock-latency fast is not allowed: P50 or P50,P99"),
        ("latency", "1,2,3", "--penstock-latency 1,2,3 is not allowed: P50 or P50,P99"),
        (
            "log_level",
            "loud",
            "--penstock-log-level loud is not allowed: debug, info, warning, error",
        ),
        ("secure", "very", "penstock_secure very is not allowed: true, false"),
    ],
)
def test_errors_contain_the_allowed_values(option: str, text: str, told: str) -> None:
    with pytest.raises(InvalidOption, match="^" + told):
        parse(**{option: text})
