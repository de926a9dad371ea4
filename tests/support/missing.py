"""Skip tests whose programs are missing on this machine, except in CI."""

import os
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest


def built(script: str, timeout_s: float) -> Path:
    """Return the path printed by a script of `tools/`, which compiles a missing program."""
    done = subprocess.run(
        [Path(__file__).resolve().parents[2] / "tools" / script],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        missing(done.stderr.strip())
    return Path(done.stdout.strip())


def missing(what: str) -> NoReturn:
    """Skip the test with a reason. If the variable CI is set, fail it, because CI has
    all programs.
    """
    if os.environ.get("CI"):
        pytest.fail(f"CI does not skip tests: {what}")
    pytest.skip(what)
