"""A seed gives the same run every time, in this process and in another one with different string
hashes and clocks.
"""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.sim.loop import SimDeadlock, VirtualLoop
from tests.sim.scenarios import SCENARIOS
from tests.sim.world import World

_ROOT = Path(__file__).parents[2]


def test_the_same_seed_twice() -> None:
    first, second, other = World(3, "mixed").run(), World(3, "mixed").run(), World(4, "mixed").run()
    assert first.trace_hash == second.trace_hash
    assert first.steps == second.steps
    assert first.trace_hash != other.trace_hash


@pytest.mark.costly("both processes run the beginning of every scenario")
def test_the_same_seed_in_two_processes() -> None:
    """Covers every scenario, with different string hashes and machine clocks."""
    first, second = (_start_hashes(hash_seed) for hash_seed in ("1", "2"))
    with first, second:
        reported = [_hashes(process) for process in (first, second)]
    assert reported[0].keys() == SCENARIOS.keys()
    differing = [name for name in SCENARIOS if reported[0][name] != reported[1][name]]
    assert not differing, (
        f"two runs of a seed differ in {differing}; compare what PYTHONHASHSEED=1 and"
        f" PYTHONHASHSEED=2 python -m tests.sim.traces --scenario {differing[0]} print"
    )


def _start_hashes(hash_seed: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "tests.sim.traces", "--hashes"]
    return subprocess.Popen(command, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def _hashes(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the hash of each scenario."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return {
        name: message for name, _, message in (line.partition(" ") for line in output.splitlines())
    }


def test_waiting_for_nothing_is_an_error() -> None:
    loop = VirtualLoop()
    never = loop.create_future()
    with pytest.raises(SimDeadlock):
        loop.run_until_complete(never)
    loop.close()


def test_what_is_given_to_a_thread_runs_in_this_one() -> None:
    loop = VirtualLoop()
    assert loop.run_until_complete(asyncio.wait_for(_thread_of_work(), 1)) == threading.get_ident()
    loop.close()


async def _thread_of_work() -> int:
    return await asyncio.to_thread(threading.get_ident)
