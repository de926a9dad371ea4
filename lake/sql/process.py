"""Run a statement in a separate process, which is killed at the limits of the statement.

Invariants: after `max_seconds` or `cancel`, and when the result is closed or the program ends, the
process has ended, regardless of what it was doing, and its temporary files have been removed. Rows
arrive frame by frame; the process waits until the program reads them.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Final

from msgspec import MsgspecError

from penstock.lake.arrow.pyarrow_untyped import RecordBatch, Schema, pa
from penstock.lake.fetch.unreadable import check_on_error
from penstock.lake.sql.errors import SqlError, canceled, time_limit_exceeded
from penstock.lake.sql.process_messages import (
    LENGTH_BYTES,
    ResultFrame,
    RunStatement,
    decode_frame,
    framed,
)
from penstock.lake.sql.session import SessionOptions, temporary_directory

_CANCEL_POLL_S: Final = 0.05
_ALLOCATORS: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""Environment variables that select other allocators than the defaults, which reserve gigabytes
that count toward the memory limit.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatementLimits:
    """The limits of a statement. max_bytes: maximum size of the rows, as counted by Arrow."""

    max_rows: int | None = None
    max_seconds: float | None = None
    max_bytes: int | None = None
    cancel: Event | None = None


class StatementProcess:
    """A running statement. Close it, or read it to its end."""

    def __init__(
        self, store: str, query: str, options: SessionOptions, limits: StatementLimits
    ) -> None:
        """Raise SqlError, or the errors of reading a topic."""
        check_on_error(options.on_error)
        self._cancel = limits.cancel
        seconds = limits.max_seconds
        self._deadline_s = None if seconds is None else time.monotonic() + seconds
        self._check()
        self.is_truncated = False
        self._warnings: list[str] = []
        self._is_ended = False
        self._closing = Lock()
        self._temp = temporary_directory(options.temp_directory)
        self._connection, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "penstock.lake.sql.worker"],
                    stdin=subprocess.PIPE,
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=os.environ | _ALLOCATORS,
                )
        except BaseException:
            self._connection.close()
            shutil.rmtree(self._temp, ignore_errors=True)
            raise
        request = RunStatement(
            store,
            query,
            replace(options, temp_directory=str(self._temp)),
            limits.max_rows,
            None if self._deadline_s is None else self._deadline_s - time.monotonic(),
            limits.max_bytes,
        )
        try:
            self.schema: Schema = pa.ipc.read_schema(pa.py_buffer(self._begin(request)))
        except BaseException:
            self.close()
            raise

    def warnings(self) -> list[str]:
        return list(self._warnings)

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the rows. Raise the errors of the constructor, or SqlStopped."""
        while not self._is_ended:
            frame = self._next()
            if frame.kind == "rows":
                yield from pa.ipc.open_stream(pa.py_buffer(frame.data))
        self.close()

    def close(self) -> None:
        """End the process. This may be called more than once, from any thread."""
        with self._closing:
            self._is_ended = True
            if self._process.returncode is None:
                self._process.kill()
                self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._connection.close()
            shutil.rmtree(self._temp, ignore_errors=True)

    def _begin(self, request: RunStatement) -> bytes:
        """Send the request, and return the schema of the result."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(framed(request))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._broken() from None
        return self._next().data

    def _next(self) -> ResultFrame:
        """Return the next frame. Raise the error of the process, SqlStopped, or SqlError."""
        try:
            size = int.from_bytes(self._exactly(LENGTH_BYTES), "big")
            frame = decode_frame(self._exactly(size))
        except (OSError, EOFError, MsgspecError):
            raise self._broken() from None
        if frame.error is not None:
            self.close()
            raise frame.error.rebuilt()
        self._warnings = frame.warnings
        if frame.kind == "end":
            self._is_ended, self.is_truncated = True, frame.is_truncated
        return frame

    def _exactly(self, size: int) -> bytearray:
        """Receive exactly `size` bytes. Raise SqlStopped, EOFError or OSError."""
        found = bytearray(size)
        left = memoryview(found)
        while left:
            self._connection.settimeout(self._wait_s())
            try:
                count = self._connection.recv_into(left)
            except TimeoutError:
                continue
            if not count:
                raise EOFError
            left = left[count:]
        return found

    def _wait_s(self) -> float | None:
        """Return the maximum time to wait for bytes. Raise SqlStopped if the statement must end."""
        try:
            left_s = self._check()
        except SqlError:
            self.close()
            raise
        if self._cancel is None:
            return left_s
        return _CANCEL_POLL_S if left_s is None else min(left_s, _CANCEL_POLL_S)

    def _check(self) -> float | None:
        """Return the remaining seconds, or None if there is no time limit. Raise SqlStopped."""
        if self._cancel is not None and self._cancel.is_set():
            raise canceled()
        if self._deadline_s is None:
            return None
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise time_limit_exceeded()
        return left_s

    def _broken(self) -> SqlError:
        """Return the reason why the process ended."""
        is_closed = self._is_ended
        self._connection.close()
        status = self._process.wait()
        self.close()
        if is_closed:
            return canceled()
        if status == -signal.SIGALRM:
            return time_limit_exceeded()
        if status < 0:
            return SqlError(
                f"the process of the statement ended by {signal.Signals(-status).name}: it needs"
                " more memory or a deeper stack than it may have; raise memory_limit, or ask for"
                " less"
            )
        return SqlError(f"the process of the statement ended with status {status}")
