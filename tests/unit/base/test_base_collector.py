"""Garbage collection is paused while a process starts, and uses its own thresholds afterwards."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("begin", "frozen"), [("tune", "True"), ("resume", "False")])
def test_garbage_collection_starts_after_the_startup(begin: str, frozen: str) -> None:
    code = f"""
import gc
from penstock.base.collector import YOUNG_OBJECTS, pause_collector, {begin}_collector
pause_collector()
print(gc.isenabled())
{begin}_collector()
print(gc.isenabled(), gc.get_threshold()[0] == YOUNG_OBJECTS, gc.get_freeze_count() > 0)
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", frozen]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="its old generation grows by increments")
def test_collections_do_not_traverse_long_lived_objects() -> None:
    code = """
import gc
from penstock.base.collector import tune_collector
tune_collector()
sizes = []
def note(phase, info):
    if phase == "start" and info["generation"] == 1:
        sizes.append(len(gc.get_objects(0)) + len(gc.get_objects(1)))
gc.callbacks.append(note)
kept = [[] for _ in range(100_000)]
print(len(sizes), max(sizes))
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, longest = map(int, done.stdout.split())
    assert count > 5
    assert longest < 13_000
