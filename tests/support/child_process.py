"""Kill the processes of a failing test."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def killed_at_end(
    process: "subprocess.Popen[AnyStr]",
) -> Generator["subprocess.Popen[AnyStr]"]:
    """Kill the process at the end of the block, and close its pipes.

    `with Popen(...)` would wait indefinitely for its exit, even if the block failed.
    """
    with process:
        try:
            yield process
        finally:
            process.kill()
