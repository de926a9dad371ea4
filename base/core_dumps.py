"""Exclude the memory of a process from core dumps: this memory contains passwords, keys and
records.
"""

import resource
from typing import Final

CORE_BYTES_MAX: Final = 1
"""Too small for any core file. With a limit of 0, Linux would still pass the memory to a program in
`kernel.core_pattern`; 1 prevents this as well (`fs/coredump.c`).
"""


def forgo_core_dumps() -> None:
    """Disable core dumps of this process and its children. The hard limit is unchanged, so that
    operators can enable dumps of a running process: `prlimit --core=unlimited: --pid PID`.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    soft = 0 if hard == 0 else CORE_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
