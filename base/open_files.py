"""Raise the limit of open files, which includes connections. See getrlimit(2).

Sessions and services usually start with a soft limit of 1,024 and a hard limit of 524,288. The soft
limit protects only programs that call select(2), which nodes do not. Kafka's JVM and Go raise it as
well.
"""

import resource
from contextlib import suppress


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Call this at the start of a process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS rejects values above kern.maxfilesperproc
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
