"""Exclude leftovers of other tests from garbage collection, which ends every run."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _only_runs_are_collected() -> None:
    gc.collect()
    gc.freeze()
