"""Run the process that decodes keys and values, one at a time.

Invariants: every request gets a response. If the process is killed at its limits, the response
contains the reason, and the next request starts a new process. `decode` blocks; calls by several
threads are serialized. Limits: a response takes at most RESPONSE_S.
"""

import signal
import socket
import subprocess
import threading
from typing import Final

from msgspec import MsgspecError

from penstock.broker.schemas.messages import FRAME_BYTES
from penstock.broker.schemas.process import LIMIT_SIGNALS, remove, spawned, temporary_directory
from penstock.broker.schemas.worker import CPU_S_MAX, MEMORY_BYTES_MAX
from penstock.deploy.records.decode_worker import DecodedValue, DecodeValue, decode_response, encode

RESPONSE_S: Final = 10.0
"""Timeout of a response. It is longer than the CPU limit of the process, because the machine may be
busy.
"""
_RESPONSE_BYTES_MAX: Final = 1 << 20
_END_S: Final = 5.0
_MODULE: Final = "penstock.deploy.records.decode_worker"


class DecodeProcess:
    """A process, which is started for the first value."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._directory: str | None = None
        self.ended_count = 0
        """Number of times that the process ended before it responded."""

    def close(self) -> None:
        with self._turn:
            self._end()

    def decode(self, request: DecodeValue) -> DecodedValue:
        """Return the decoded value, or the reason why it cannot be decoded."""
        with self._turn:
            try:
                return self._send_request(self._connected(), encode(request))
            except (OSError, EOFError, MsgspecError) as error:
                self.ended_count += 1
                status = self._end()
                if status is not None and -status in LIMIT_SIGNALS:
                    name = signal.Signals(-status).name
                    return DecodedValue(
                        problem=f": decoding it takes more than {CPU_S_MAX:.0f} s of CPU,"
                        f" {MEMORY_BYTES_MAX >> 20} MiB or the stack ({name})"
                    )
                return DecodedValue(problem=f": the process that decodes failed: {error!r}")

    def _connected(self) -> socket.socket:
        if self._connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._directory = temporary_directory()
                    self._process = spawned(theirs, _MODULE, directory=self._directory)
                except BaseException:
                    ours.close()
                    raise
            ours.settimeout(RESPONSE_S)
            self._connection = ours
        return self._connection

    def _send_request(self, connection: socket.socket, data: bytes) -> DecodedValue:
        connection.sendall(len(data).to_bytes(FRAME_BYTES, "big") + data)
        size = int.from_bytes(_exactly(connection, FRAME_BYTES), "big")
        if size > _RESPONSE_BYTES_MAX:
            raise EOFError(f"a response of {size} bytes")
        return decode_response(_exactly(connection, size))

    def _end(self) -> int | None:
        """Return the exit status of the process, or None if there was no process."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        try:
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            remove(self._directory)


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Raises EOFError, TimeoutError."""
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise EOFError("it closed its connection")
        found += piece
    return bytes(found)
