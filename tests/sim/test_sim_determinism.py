"""A seed gives the same run every time, in this process and in another one with other string
hashes.
"""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.sim.loop import SimDeadlock, VirtualLoop
from tests.sim.world import World

_ROOT = Path(__file__).parents[2]
_PRINT_HASH = (
    "import sys; from tests.sim.world import World; print(World(int(sys.argv[1]),"
    " sys.argv[2]).run().trace_hash)"
)


def test_the_same_seed_twice() -> None:
    first, second, other = World(3, "mixed").run(), World(3, "mixed").run(), World(4, "mixed").run()
    assert first.trace_hash == second.trace_hash
    assert first.steps == second.steps
    assert first.trace_hash != other.trace_hash


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_same_seed_in_another_process(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-c", _PRINT_HASH, "5", "zombie"]
    told = subprocess.run(
        command, env=environment, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.strip() == World(5, "zombie").run().trace_hash


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
