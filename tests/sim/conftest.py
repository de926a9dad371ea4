"""Exclude leftovers of other tests from the garbage collection at the end of every run."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _only_runs_are_collected() -> None:
    gc.collect()
    gc.freeze()
