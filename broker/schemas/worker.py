"""The process that checks schemas and records for a broker. It ends with its standard input.

What it decodes was written by others. A schema may take exponential time, a small value much
memory, and native code may overflow its stack; none of that may stop a broker, which has one event
loop. So the kernel ends this process at CPU_S_MAX for one request, and memory is limited to
MEMORY_BYTES_MAX. The broker refuses the batch and starts another process.
Must not: open a connection, or read what the broker does not send.
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
"""Of the address space, of which the libraries take a tenth."""
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_STDIN: Final = 0


def main() -> None:
    check = RecordCheck()
    serve(lambda request: encode(check.answer(decode_request(request))))


def serve(answer: Callable[[bytearray], bytes]) -> None:
    """Limit this process, and answer requests on its standard input until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ValueError, OSError):  # macOS knows the limit and does not set it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    forgo_core_dumps()
    with suppress(OSError):  # where memory runs out, the kernel ends this process and no broker
        _OOM_SCORE.write_text("1000")
    with socket.socket(fileno=_STDIN) as connection:
        while request := _read(connection):
            signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
            found = answer(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(len(found).to_bytes(FRAME_BYTES, "big") + found)


def _read(connection: socket.socket) -> bytearray | None:
    """Return the next request; None: the broker has closed the connection."""
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
