"""Run every transcript in this directory. `tests.support.raft_scenario` documents the format."""

from pathlib import Path

import pytest

from penstock.controller.raft.core import RaftCore
from tests.support.raft_scenario import Failed, Scenario

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_raft_transcript(script: Path) -> None:
    Scenario(script).run()


class CommitsOldTerms(RaftCore):
    """Commits entries of old terms by counting replicas, which violates Raft."""

    def _may_commit(self, index: int) -> bool:
        return True


def test_figure_8_fails_if_entries_of_old_terms_are_committed_by_counting() -> None:
    with pytest.raises((Failed, AssertionError)):
        Scenario(HERE / "figure_8.txt", CommitsOldTerms).run()
