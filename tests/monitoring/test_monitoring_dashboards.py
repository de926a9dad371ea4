"""Check the dashboards against Grafana's own schema, and that a wrong one does not pass."""

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
    """Return what Grafana's schema refuses, a line each."""
    done = subprocess.run(
        [program("dashboards"), *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if done.stdout else 0), done.stderr
    return done.stdout


def test_grafana_tracks_all_that_the_dashboards_say() -> None:
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
def test_a_wrong_dashboard_does_not_pass(
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
