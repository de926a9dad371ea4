"""The collector pauses while a process starts, and runs with its own thresholds afterwards."""

import subprocess
import sys


def test_collections_begin_when_the_process_is_tuned() -> None:
    code = """
import gc
from base.collector import YOUNG_OBJECTS, pause_collector, tune_collector
pause_collector()
print(gc.isenabled())
tune_collector()
print(gc.isenabled(), gc.get_threshold()[0] == YOUNG_OBJECTS, gc.get_freeze_count() > 0)
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "True"]
