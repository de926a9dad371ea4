"""Die with the supervisor: a process of a local cluster must not outlive the command that started
it, however that one ended.

Invariant: once `hold` has returned, the end of the parent (SIGKILL too) ends this process. Linux
tells the kernel; elsewhere a thread looks twice a second whether the parent is still the same. Must
not be used by processes that an operator starts.
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
_LOOK_INTERVAL_S: Final = 0.5


def hold(environment: Mapping[str, str]) -> None:
    """Tie this process to the one named in the environment, if one is."""
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
        time.sleep(_LOOK_INTERVAL_S)
    os._exit(1)
