"""The dashboards conform to Grafana's schema, and invalid ones do not."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.prometheus import program
from tests.support.promql import CHART

DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
pytestmark = pytest.mark.long


def errors(*paths: Path) -> str:
    """Return the violations of Grafana's schema, one per line."""
    done = subprocess.run(
        [program("dashboards"), *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if done.stdout else 0), done.stderr
    return done.stdout


def test_dashboards_conform_to_the_grafana_schema() -> None:
    assert len(DASHBOARDS) == 4
    assert errors(*DASHBOARDS) == ""


@pytest.mark.parametrize(
    ("place", "content", "reason"),
    [
        ((), {"titel": "x"}, "unexpected field 'titel'"),
        (("panels", 0), {"type": "timeserie"}, 'no panel "timeserie"'),
        (("panels", 0, "gridPos"), {"w": 25}, "gridPos.w: must be <= 24"),
        (("panels", 0, "fieldConfig", "defaults"), {"unti": "s"}, "fieldConfig.defaults.unti"),
        (("panels", 0, "targets", 0), {"query": "up"}, "panels[0].targets[0].query"),
        (("templating", "list", 0), {"refresh": "never"}, "templating.list[0].refresh"),
    ],
)
def test_invalid_dashboard_is_rejected(
    tmp_path: Path, place: tuple[str | int, ...], content: dict[str, Any], reason: str
) -> None:
    dashboard = json.loads(DASHBOARDS[0].read_text())
    part: Any = dashboard
    for step in place:
        part = part[step]
    part |= content
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(dashboard))
    assert reason in errors(wrong)
