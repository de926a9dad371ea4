"""Planted bugs that need a few events in one order, each found by a script that makes them happen.

The script finds nothing without the bug.
"""

import pytest

from tests.sim.directed import ScriptFunction, violation_now, violation_of
from tests.sim.mutants import planted
from tests.sim.scripts.table import FOUND_BY

CASES = [(bug, script, finding) for bug, found in FOUND_BY.items() for script, finding in found]


@pytest.mark.parametrize(
    ("bug", "script", "finding"),
    CASES,
    ids=[f"{script.__name__}-{bug}" for bug, script, _ in CASES],
)
def test_the_script_finds_its_bug_and_nothing_else(
    bug: str, script: ScriptFunction, finding: str
) -> None:
    assert violation_of(script) is None
    with planted(bug):
        violation = violation_now(script)
    assert finding in (violation or "")
