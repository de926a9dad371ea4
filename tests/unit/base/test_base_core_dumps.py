"""A process that crashes leaves no core dump."""

import os
import signal
import subprocess
import sys
from pathlib import Path

CRASH = """
import os, resource
from penstock.base.core_dumps import forgo_core_dumps
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
forgo_core_dumps()
os.abort()
"""


def test_a_crash_leaves_no_core_dump(tmp_path: Path) -> None:
    """Without the call, the kernel writes a core dump here, unless its hard limit or pattern
    forbids it.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    crashed = subprocess.Popen((sys.executable, "-c", CRASH), cwd=tmp_path, env=environment)
    _, status = os.waitpid(crashed.pid, 0)
    crashed.returncode = -os.WTERMSIG(status)  # so that Popen does not wait for the process again
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
