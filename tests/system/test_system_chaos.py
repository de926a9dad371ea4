"""The short form of `make chaos`: 30 s of faults for a real cluster with all its clients, with the
same schedules in every run.
"""

import shutil
from itertools import islice

import pytest

from tests.chaos.run import run
from tests.chaos.schedule import CONTROLLERS, LEADER, Kind, waves

SECONDS = 30.0
SEEDS = (39027,)
"""The first waves of this seed delay markers between brokers and requests of clients, kill the
leading controller and a broker, isolate a node, and cut requests to the store short.
"""


@pytest.mark.system
@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_lost_doubled_or_left_over(seed: int) -> None:
    outcome = await run(SECONDS, seed, print)
    assert outcome.violations == [], (
        f"logs and history: {outcome.directory}; again: python -m tests.chaos --minutes 0.5 --seed"
        f" {seed}"
    )
    shutil.rmtree(outcome.directory)


def test_the_faults_follow_from_the_seed_and_leave_no_node_in_two_process_faults() -> None:
    found = list(islice(waves(5), 300))
    assert found == list(islice(waves(5), 300))
    assert found != list(islice(waves(6), 300))
    for wave in found:
        hit = [
            name
            for fault in wave.faults
            if fault.kind in (Kind.KILL, Kind.PAUSE, Kind.TERMINATE)
            for name in fault.whom
        ]
        assert len(hit) == len(set(hit)), wave
        assert LEADER not in hit or not set(hit) & set(CONTROLLERS), wave
        assert wave.length_s <= 15
    assert {fault.kind for wave in found for fault in wave.faults} == set(Kind)
