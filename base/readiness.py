"""Report readiness from a node to its supervisor over an inherited pipe.

A response on the node's port would not prove readiness, because another process may have taken the
port.
"""

import os
from collections.abc import MutableMapping
from typing import Final

PIPE_VARIABLE: Final = "PENSTOCK_READY_PIPE"
"""Environment variable with the file descriptor of the pipe."""
REPORT_BYTES_MAX: Final = 512
"""Maximum size of a report: writes of up to this size are atomic."""


def report_ready(cluster_id: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Report, once, that this node listens on its ports and serves. This has no effect unless a
    supervisor waits for the report.
    """
    pipe = environment.pop(PIPE_VARIABLE, "")
    if not pipe:
        return
    try:
        os.write(int(pipe), f"{cluster_id}\n".encode())
        os.close(int(pipe))
    except OSError:  # the supervisor is exiting
        pass
