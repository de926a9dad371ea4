"""Worker process that checks schemas and records for a broker. It exits when stdin is closed.

A schema may take exponential time, a small value may expand to a large amount of memory, and native
code may overflow its stack. The kernel kills this process at its CPU and memory limits; the broker
then rejects the batch and starts another process.
"""

import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.base.core_dumps import forgo_core_dumps
from penstock.broker.schemas.messages import FRAME_BYTES, decode_request, encode
from penstock.broker.schemas.records import RecordCheck

CPU_S_MAX: Final = 2.0
MEMORY_BYTES_MAX: Final = 512 << 20
"""Limit of the address space. The libraries use a tenth of it."""
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_STDIN: Final = 0


def main() -> None:
    check = RecordCheck()
    serve(lambda request: encode(check.check(decode_request(request))))


def serve(response: Callable[[bytearray], bytes]) -> None:
    """Limit the resources of this process, then handle requests on standard input until it is
    closed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ValueError, OSError):  # macOS has this limit but does not allow setting it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    forgo_core_dumps()
    # If memory is exhausted, the kernel should kill this process, not the broker.
    with suppress(OSError):
        _OOM_SCORE.write_text("1000")
    with socket.socket(fileno=_STDIN) as connection:
        while request := _read(connection):
            signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
            found = response(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(len(found).to_bytes(FRAME_BYTES, "big") + found)


def _read(connection: socket.socket) -> bytearray | None:
    """Return the next request, or None if the broker has closed the connection."""
    head = _exactly(connection, FRAME_BYTES)
    return None if head is None else _exactly(connection, int.from_bytes(head, "big"))


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = connection.recv_into(left)
        if not count:
            return None
        left = left[count:]
    return data


if __name__ == "__main__":
    main()
