"""Let a process open as many files as the system allows it: each connection is one.

Sessions and services usually start with a soft limit of 1,024, which 1,000 clients use up, and a
hard limit of 524,288. The soft one only protects programs that call select(2), which nodes do not.
Kafka's JVM and Go raise it as well. Source: getrlimit(2); systemd, "File Descriptor Limits".
"""

import resource
from contextlib import suppress


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard one. Call at the start of a process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS refuses more than kern.maxfilesperproc
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
