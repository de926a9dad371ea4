"""The table of `make bench-kafka`: ratios, thresholds, the section in the docs, and a small real
row.
"""

import signal
from pathlib import Path

import pytest

from benchmarks.beside_kafka import __main__ as command
from benchmarks.beside_kafka import java, many, report, results, single, systems
from benchmarks.beside_kafka.results import Result
from benchmarks.beside_kafka.rows import MEASUREMENTS, ROWS, Bar, Row, medians
from benchmarks.beside_kafka.warm import warm_up

RATE = Row("r", "m", "Rate", "MB/s", "higher", {"memory": Bar(1.2), "file": Bar(1.0)})
TIME = Row("t", "m", "Time", "s", "lower", {"*": Bar(0.8, beside_kafka=False)})


def result(
    values: dict[str, dict[str, float]],
    *,
    measurement: str = "small",
    failures: dict[str, str] | None = None,
    load: float = 0.0,
) -> Result:
    return Result(
        measurement=measurement,
        values=values,
        failures=failures or {},
        date="2026-11-26T10:00:00+00:00",
        commit="abc",
        machine="2 vCPU",
        load=load,
        rounds=3,
    )


def test_a_relative_threshold_is_compared_with_the_ratio_to_kafka() -> None:
    values = {"kafka": 100.0, "memory": 119.0, "file": 100.0}
    assert RATE.ratio(values, "memory") == pytest.approx(1.19)
    assert RATE.passed(values, "memory") is False
    assert RATE.passed(values, "file") is True
    assert RATE.passed(values, "moto") is None


def test_without_a_kafka_result_there_is_no_ratio_and_no_verdict() -> None:
    assert RATE.ratio({"memory": 5.0}, "memory") is None
    assert RATE.passed({"memory": 5.0}, "memory") is None
    assert RATE.ratio({"memory": 5.0, "kafka": 0.0}, "memory") is None


def test_an_absolute_threshold_applies_without_a_kafka_result() -> None:
    assert TIME.passed({"file": 0.7}, "file") is True
    assert TIME.passed({"file": 0.9}, "file") is False
    assert TIME.passed({"kafka": 9.0}, "kafka") is None


def test_medians_ignore_rounds_without_the_value() -> None:
    rounds = [{"a": 1.0}, {"a": 9.0, "b": 4.0}, {"a": 2.0}]
    assert medians(rounds) == {"a": 2.0, "b": 4.0}


def test_rows_refer_to_existing_systems_and_measurements() -> None:
    known = set(systems.SYSTEMS) | {"*"}
    for row in ROWS.values():
        assert set(row.bars) <= known, row
        assert row.measurement in MEASUREMENTS


def test_new_results_replace_only_the_measured_systems() -> None:
    old = result({"small": {"kafka": 1.0, "memory": 2.0, "file": 3.0}}, failures={"moto": "gone"})
    new = result({"small": {"memory": 5.0}, "small-cpu": {"memory": 7.0}})
    merged = results.merged(old, new)
    assert merged.values == {
        "small": {"kafka": 1.0, "memory": 5.0, "file": 3.0},
        "small-cpu": {"memory": 7.0},
    }
    assert merged.failures == {"moto": "gone"}
    again = results.merged(merged, result({"small": {"moto": 4.0}}))
    assert again.failures == {}


def test_a_failed_measurement_replaces_its_old_values() -> None:
    old = result({"small": {"kafka": 1.0, "memory": 2.0}})
    merged = results.merged(old, result({}, failures={"memory": "boom"}))
    assert merged.values["small"] == {"kafka": 1.0}


def test_stored_results_survive_a_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "build" / "results.json"
    assert results.load(file) == {}
    stored = {"small": result({"small": {"kafka": 1.0}})}
    results.save(stored, file)
    assert results.load(file) == stored


def test_markdown_shows_values_ratios_missed_thresholds_and_failures() -> None:
    values = {"small": {"kafka": 4_000.0, "memory": 3_000.0, "file": 5_000.0}}
    text = report.markdown({"small": result(values, failures={"moto": "no port"}, load=0.35)})
    assert (
        "| Small requests, 8 connections, /s | 4,000 | **3,000 (0.75x)** | 5,000 (1.25x) | failed |"
        " ≥ 1 times |"
    ) in text
    assert "- small, moto: no port" in text
    assert "1 of 1 measurements and took 35% to 35% of its cores" in text
    assert "- **kafka**: acknowledged when it is in the page cache" in text


def test_the_docs_section_is_replaced_between_its_markers() -> None:
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.with_section(page, "new")
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert report.with_section(once, "new") == once
    with pytest.raises(ValueError, match="one line"):
        report.with_section("no marks", "new")
    assert report.with_section(report.PAGE.read_text(), "new")


def test_the_exponent_of_a_power_law_is_fitted() -> None:
    assert many.exponent({10: 5.0, 100: 50.0, 1_000: 500.0}) == pytest.approx(1.0)
    assert many.exponent({10: 1.0, 100: 100.0}) == pytest.approx(2.0)
    assert many.exponent({10: 1.0}) is None
    assert many.exponent({10: 0.0, 100: 0.0}) is None


def test_output_of_the_java_tools_is_parsed() -> None:
    produced = (
        "1000 records sent, 1.0 records/sec (9.00 MB/sec), 1 ms avg latency, 1.0 ms max latency.\n"
        "500 records sent, 30.0 records/sec (2.50 MB/sec), 1.00 ms avg latency.\n"
    )
    assert java.produced_mb_per_s(produced) == pytest.approx(2.62144)
    consumed = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec,"
        " rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "2026-11-26 10:00:00:000, 2026-11-26 10:00:01:000, 95.36, 95.36, 100000, 1.0, 500, 500,"
        " 10.00, 2.0\n"
    )
    assert java.consumed_mb_per_s(consumed) == pytest.approx(10.48576)


def test_a_hanging_measurement_is_stopped() -> None:
    with pytest.raises(command.TooLong, match="1 s"), command.limited(1):
        signal.pause()
    assert signal.alarm(0) == 0


def warmed(speeds: list[float], limit_s: float) -> int:
    """Return how many one-second windows ran before the warm-up ended, given their speeds."""
    left = iter(speeds)
    times = iter(range(100))
    return warm_up(lambda: next(left), limit_s, now=lambda: next(times))


def test_a_warm_up_ends_with_two_windows_of_about_the_same_speed() -> None:
    assert warmed([100, 200, 300, 310, 600], 10) == 4
    assert warmed([100, 96], 10) == 2
    assert warmed([100, 94, 90], 10) == 3


def test_the_warm_up_time_is_limited() -> None:
    assert warmed([100, 200, 400, 800, 1_600, 3_200], 3) == 4
    assert warmed([], 0) == 0


def test_a_small_row_is_measured_for_penstock() -> None:
    """Uses a real broker with a store in memory and real sockets, and leaves nothing behind."""
    with systems.running(systems.MEMORY) as system:
        process = system.node.process
        values = single.small_requests(system, single.Size(seconds=0.2, warm_s=0.1))
    assert values["small"] > 0
    assert values["small-cpu"] > 0
    assert process.poll() is not None
    assert not system.directory.exists()
