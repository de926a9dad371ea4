"""A program continues if its log cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

_CONFIGURATIONS = {
    "node": "from penstock.deploy.node import logs; logs.configure('info')",
    "library": "",
}
_LOGS = """
{configuration}
import structlog
from penstock.base.log import get_logger
for logger in (get_logger("stream.test"), {loggers}):
    for method in ("warning", "error", "exception"):
        getattr(logger, method)("event", value="x" * 10_000)
print("alive", flush=True)
"""

full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")


def run(configuration: str, stderr: int) -> str:
    """Log to this file descriptor; return what the program wrote to stdout."""
    loggers = "structlog.get_logger('broker.test')" if configuration == "node" else ""
    script = _LOGS.format(configuration=_CONFIGURATIONS[configuration], loggers=loggers)
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout


@full_disk
@pytest.mark.parametrize("configuration", _CONFIGURATIONS)
def test_a_program_continues_if_the_disk_of_its_log_is_full(configuration: str) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(configuration, full.fileno()) == "alive\n"


@pytest.mark.parametrize("configuration", _CONFIGURATIONS)
def test_a_program_continues_if_the_reader_of_its_log_is_gone(configuration: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run(configuration, writing) == "alive\n"
    finally:
        os.close(writing)
