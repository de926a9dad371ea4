"""Use SO_RCVLOWAT to wake the event loop only when a large part of a frame has arrived.

TLS clients send a frame of 1 MB in 64 records of 16 KiB, each with its own system call. Without
this limit, each record would take an event loop iteration, which doubles the CPU time spent in the
kernel.
"""

import asyncio
import socket
from typing import Final

from penstock.broker.network.tls_channel import RECORD_BYTES_MAX

WAKE_BYTES: Final = 1024 * 1024
"""Maximum number of bytes that accumulate in the kernel before the event loop is woken."""


class WakeLimit:
    """Controls when the socket of one TLS connection wakes the event loop."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 1

    def expect(self, transport: asyncio.Transport, missing_bytes: int) -> None:
        """Wake when a large part of the remaining frame has arrived, but always before its last
        byte. missing_bytes: the size of the remaining frame; 0 to wake for the first byte.

        One record is subtracted, because TLS may have already received it.
        """
        wanted = max(1, min(WAKE_BYTES, missing_bytes - RECORD_BYTES_MAX))
        if wanted != self._bytes:
            self._bytes = wanted
            owned = transport.get_extra_info("socket")
            owned.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    @property
    def is_late(self) -> bool:
        """Return whether the socket waits for more than one byte."""
        return self._bytes > 1
