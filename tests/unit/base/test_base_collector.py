"""The collector pauses while a process starts, and runs with its own thresholds afterwards."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("begin", "frozen"), [("tune", "True"), ("resume", "False")])
def test_collections_begin_when_the_process_is_tuned(begin: str, frozen: str) -> None:
    code = f"""
import gc
from base.collector import YOUNG_OBJECTS, pause_collector, {begin}_collector
pause_collector()
print(gc.isenabled())
{begin}_collector()
print(gc.isenabled(), gc.get_threshold()[0] == YOUNG_OBJECTS, gc.get_freeze_count() > 0)
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", frozen]
