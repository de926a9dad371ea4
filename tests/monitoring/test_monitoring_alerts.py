"""promtool checks the chart's rules and simulates each alert: it fires in time with the right text,
and not one step earlier or close to its limits.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.alert_cases import CASES, STEP_S, AlertCase, Series, counting, of
from tests.support.prometheus import RULES, program
from tests.support.promql import rules

ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
pytestmark = pytest.mark.long


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expected(case: AlertCase) -> dict[str, Any]:
    """Return the firing alert: its labels, and its annotations with the summary filled in."""
    rule = ALERTS[case.alert]
    return {
        "exp_labels": {"namespace": "streams", **case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }


def played(case: AlertCase, series: Series, alerts: dict[int, list[Any]]) -> dict[str, Any]:
    return {
        "name": case.alert,
        "interval": f"{case.step_s}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{at_s}s", "alertname": case.alert, "exp_alerts": expected_then}
            for at_s, expected_then in alerts.items()
        ],
    }


def run(tmp_path: Path, *tests: dict[str, Any]) -> None:
    file = tmp_path / "tests.yaml"
    content = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{STEP_S}s",
        "fuzzy_compare": True,
        "tests": list(tests),
    }
    file.write_text(yaml.safe_dump(content))
    promtool("test", "rules", file)


def test_rules_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == set(ALERTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_alert_fires_in_time_with_its_summary(tmp_path: Path, case: AlertCase) -> None:
    fired = [expected(case)]
    run(
        tmp_path,
        played(case, case.series, {case.fires_s - STEP_S: [], case.fires_s: fired}),
        played(case, case.calm, {case.fires_s: [], case.fires_s + 1_800: []}),
    )


def test_autoscaling_rule_adds_received_and_sent_bytes(tmp_path: Path) -> None:
    pod = "penstock-broker-0"
    series = {
        of("penstock_broker_received_bytes_total", pod=pod): counting(3_000),
        of("penstock_broker_sent_bytes_total", pod=pod): counting(6_000),
    }
    run(
        tmp_path,
        {
            "interval": f"{STEP_S}s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": "penstock_network_bytes_per_second",
                    "eval_time": "5m",
                    "exp_samples": [
                        {
                            "labels": of("penstock_network_bytes_per_second", pod=pod),
                            "value": 300,
                        }
                    ],
                }
            ],
        },
    )
