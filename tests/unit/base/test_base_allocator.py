"""A process that frees buffers reuses their memory."""

import ctypes
import os
import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_S

FAULTS = """
import resource, sys
from penstock.base.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()

def frames():
    return [bytearray(1_000_000) for _ in range(50)]

frames()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    frames()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = 4 * 50 * 1_000_000 // os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_freed_buffers_are_reused_without_page_faults() -> None:
    """calloc clears reused memory, so allocating a bytearray touches every page."""
    assert _faults("keep") < _PAGES / 100
    assert _faults("default") > _PAGES / 2


def _faults(mode: str) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return int(
        subprocess.run(
            (sys.executable, "-c", FAULTS, mode),
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            timeout=PATIENCE_S,
        ).stdout
    )
