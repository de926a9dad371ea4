"""End a process of a local cluster when its supervisor ends for any reason.

Invariant: after `die_with_parent`, this process is killed when the parent ends, even by SIGKILL. On
Linux, the kernel does this; elsewhere a thread checks for the parent twice a second. Processes that
an operator starts must not use it.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

PARENT_VARIABLE: Final = "PENSTOCK_SUPERVISOR_PID"
_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9
_POLL_INTERVAL_S: Final = 0.5


def die_with_parent(environment: Mapping[str, str]) -> None:
    """Tie this process to the parent in the environment, if any."""
    parent = environment.get(PARENT_VARIABLE, "")
    if not parent.isdigit():
        return
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    else:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True, name="lifeline").start()
    if os.getppid() != int(parent):
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_INTERVAL_S)
    os._exit(1)
