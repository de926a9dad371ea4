"""Start, kill and watch one process of a measured system."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_STOP_S: Final = 30.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Node:
    """A process that can be restarted with the same command. Its output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.command = tuple(command)
        self.log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the node was not started"
        return self._process

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit; do nothing if it was not started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM, and SIGKILL after 30 s."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def cpu_s(self) -> float:
        """Return the user and system time so far."""
        fields = self._file("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def resident_mb(self) -> float:
        """Return the resident memory in units of 10**6 bytes."""
        line = next(line for line in self._file("status").splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1_024 / 1e6

    def _file(self, name: str) -> str:
        try:
            return Path(f"/proc/{self.process.pid}/{name}").read_text()
        except OSError as error:
            raise RuntimeError(f"{self.command} ended: {self.tail()}") from error

    def tail(self) -> str:
        """Return the end of its output."""
        return self.log.read_text(errors="replace")[-2_000:]


def quiet_cpu_s(nodes: Sequence[Node], wait_s_max: float = 3.0) -> float:
    """Wait until the nodes are nearly idle, up to this limit, and return their CPU time.

    This includes the time of delayed uploads and flushes.
    """
    deadline = time.monotonic() + wait_s_max
    before = sum(node.cpu_s() for node in nodes)
    while time.monotonic() < deadline:
        time.sleep(0.5)
        now = sum(node.cpu_s() for node in nodes)
        if now - before < 0.04:
            return now
        before = now
    return before
