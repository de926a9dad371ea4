"""For every planted bug, a script produces the events that expose it, because a simulator that
finds nothing proves nothing. Without the bug, the script finds nothing.
"""

import pytest

from tests.sim.directed import ScriptFunction, violation_now, violation_of
from tests.sim.mutants import MUTANTS, planted
from tests.sim.scripts.table import FOUND_BY

CASES = [(bug, script, finding) for bug, found in FOUND_BY.items() for script, finding in found]


def test_every_planted_bug_has_a_script() -> None:
    assert FOUND_BY.keys() == MUTANTS.keys()


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
