"""The short form of `make chaos`: 30 s of faults on a real cluster with all its clients, with the
same fault schedules in every run.
"""

import shutil
from itertools import islice

import pytest

from tests.chaos.run import run
from tests.chaos.schedule import CONTROLLERS, LEADER, Kind, waves

SECONDS = 30.0
SEEDS = (39027,)
"""The first waves of this seed delay transaction markers and client requests, kill the leading
controller and a broker, isolate a node, and truncate requests to the store.
"""


@pytest.mark.system
@pytest.mark.parametrize("seed", SEEDS)
async def test_chaos_run_finds_no_violation(seed: int) -> None:
    outcome = await run(SECONDS, seed, print)
    assert outcome.violations == [], (
        f"logs and history: {outcome.directory}; again: python -m tests.chaos --minutes 0.5 --seed"
        f" {seed}"
    )
    shutil.rmtree(outcome.directory)


def test_fault_schedule_depends_on_the_seed_and_gives_a_node_one_process_fault_per_wave() -> None:
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
