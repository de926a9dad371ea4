"""Keep the memory of a process out of core dumps: it holds passwords, keys and records."""

import resource
from typing import Final

CORE_BYTES_MAX: Final = 1
"""Too small for any file. With 0, Linux would still pass the memory to a program, if
`kernel.core_pattern` names one; 1 prevents that too. Source: `fs/coredump.c`.
"""


def forgo_core_dumps() -> None:
    """Forgo core dumps of this process and its children. The hard limit stays, so that operators
    can allow dumps of a running process: `prlimit --core=unlimited: --pid PID`.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    soft = 0 if hard == 0 else CORE_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
