"""Nodes may open as many files as the hard limit allows, whatever the soft limit is."""

import subprocess
import sys

from tests.support.waiting import PATIENCE_S

_LOWERED = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from penstock.base.open_files import raise_open_files_limit
raise_open_files_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_the_soft_limit_is_raised_to_the_hard_limit() -> None:
    subprocess.run([sys.executable, "-c", _LOWERED], timeout=PATIENCE_S, check=True)
