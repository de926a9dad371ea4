"""Every transcript in this directory; the format is told in `support.raft_scenario`."""

from pathlib import Path

import pytest

from controller.raft.core import RaftCore
from tests.support.raft_scenario import Failed, Scenario

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_transcript(script: Path) -> None:
    Scenario(script).run()


class CommitsOldTerms(RaftCore):
    def _may_commit(self, index: int) -> bool:
        return True


def test_figure_8_is_a_test_of_the_rule_it_is_about() -> None:
    with pytest.raises((Failed, AssertionError)):
        Scenario(HERE / "figure_8.txt", CommitsOldTerms).run()
