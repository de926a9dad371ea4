"""Controls the process of the cluster from the test process: start it, send commands, end it.

Invariant: after `close`, it has ended and its directory is deleted. If this process dies instead,
the cluster's process does that when its stdin is closed. A response takes at most
`RESPONSE_TIMEOUT_S`; errors include the log. Threads may share it.
"""

import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec

from penstock.base.errors import ExpectedError
from penstock.deploy.clients.security import PLAINTEXT, read_file
from penstock.deploy.errors import ClusterFailed
from penstock.deploy.local import bytecode
from penstock.testing.control import AnyCommand, CommandResponse, Started
from penstock.testing.options import Options

START_TIMEOUT_S: Final = 180.0
"""The start timeout of `penstock dev`."""
RESPONSE_TIMEOUT_S: Final = 60.0
"""Longer than every deadline in the cluster's process, so exceeding it is a bug."""
_STOP_TIMEOUT_S: Final = 5.0
_MEMORY: Final = "/dev/shm"  # noqa: S108 - a private directory is made in it
_LOG_LINES_MAX: Final = 40
_LOG_BYTES_MAX: Final = 64 * 1024
_T = TypeVar("_T")


class Refused(ExpectedError):
    """The cluster could not execute a request of a test; the message contains the reason."""


class ClusterProcess:
    """Starts the process when constructed. Call `wait_ready` before `send_request`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="penstock-pytest-log-")  # noqa: SIM115 - closed by `close`
        self._unread = b""
        self._pending = 0
        """Number of commands whose responses have not been read."""
        self.directory = tempfile.mkdtemp(
            prefix="penstock-pytest-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None
        )
        self.bootstrap_servers = ""
        self.security = PLAINTEXT
        """How clients connect, once the cluster is ready."""
        self.started_at = time.monotonic()
        self.startup_s = 0.0
        """The time from the start of the process until it was ready."""
        command = (
            sys.executable,
            "-P",
            "-m",
            "penstock.testing.server",
            msgspec.json.encode(options).decode(),
            self.directory,
        )
        environment = bytecode.environment(os.environ) | {
            "PYTHONPATH": os.pathsep.join(_import_path())
        }
        # In its own process group, so that Ctrl-C reaches only pytest, which ends the cluster.
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            process_group=0,
        )
        self._pid = self._process.pid

    @property
    def pid(self) -> int:
        return self._pid

    def wait_ready(self) -> None:
        """Wait until the cluster is ready. Raise ClusterFailed."""
        if self.bootstrap_servers:
            return
        started = self._read(Started, self.started_at + START_TIMEOUT_S, "did not start")
        if started.error:
            raise ClusterFailed(
                f"the Penstock cluster of this test run did not start: {started.error}"
            )
        self.startup_s = time.monotonic() - self.started_at
        if started.client_properties:
            self.security = read_file(Path(started.client_properties))
        self.bootstrap_servers = ",".join(f"127.0.0.1:{port}" for port in started.ports)

    def send_request(self, command: AnyCommand) -> CommandResponse:
        """Send a command and return the response. Raise Refused with the cluster's message, or
        ClusterFailed if there is no response.
        """
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(msgspec.json.encode(command) + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError):  # the pipe is broken, or `close` closed it
                raise self._failure("is gone") from None
            self._pending += 1
            deadline = time.monotonic() + RESPONSE_TIMEOUT_S
            # A timeout of a test or Ctrl-C may have interrupted the wait for earlier responses.
            while True:
                response = self._read(CommandResponse, deadline, "does not respond")
                self._pending -= 1
                if not self._pending:
                    break
        if response.error:
            raise Refused(response.error)
        return response

    def log_end(self) -> int:
        """Return the number of bytes logged so far."""
        return os.fstat(self._log.fileno()).st_size

    def log_since(self, start: int) -> str:
        """Return the log after this byte; only its last part if it is long."""
        end = self.log_end()
        start = max(start, end - _LOG_BYTES_MAX)
        lines = (
            os.pread(self._log.fileno(), end - start, start).decode(errors="replace").splitlines()
        )
        return "\n".join(lines[-_LOG_LINES_MAX:])

    def close(self) -> None:
        """End the process. A copy of this object in a forked child does nothing."""
        if os.getpid() != self._owner_pid or self._log.closed:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it has already ended
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._log.close()

    def _read(self, kind: type[_T], deadline: float, failed: str) -> _T:
        """Read the next line. A selector waits for it, because pipes do not support timeouts."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failure(f"{failed} in time")
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise self._failure(
                        f"{failed}: it ended with exit code {self._process.wait(_STOP_TIMEOUT_S)}"
                    )
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return msgspec.json.decode(line, type=kind)

    def _failure(self, what: str) -> ClusterFailed:
        log = "" if self._log.closed else self.log_since(0)
        return ClusterFailed(
            f"the Penstock cluster of this test run {what}"
            + (f"; its log:\n{log}" if log else ", and logged nothing")
        )


def _import_path() -> list[str]:
    """Return the path from which this process imported Penstock: pytest's ini file may set
    `pythonpath`, which a child process does not read.
    """
    ours = str(Path(__file__).resolve().parents[2])
    given = [
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != ours
    ]
    return [ours, *given]
