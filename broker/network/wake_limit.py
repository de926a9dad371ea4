"""Wake the event loop only when enough of a frame has arrived, with SO_RCVLOWAT.

TLS clients send a frame of 1 MB in 64 records of 16 KiB, each with its own system call. Otherwise
each record would take an event loop iteration, which doubles the CPU time in the kernel.
"""

import asyncio
import socket
from typing import Final

from penstock.broker.network.tls_channel import RECORD_BYTES_MAX

WAKE_BYTES: Final = 1024 * 1024
"""Maximum bytes that accumulate in the kernel before the event loop is woken."""


class WakeLimit:
    """When the socket of one TLS connection wakes the event loop."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 1

    def expect(self, transport: asyncio.Transport, missing_bytes: int) -> None:
        """Wake once a large part of the remaining frame has arrived, and always before its last
        byte; 0 for the first byte.

        Subtracts one record, which TLS may already have received.
        """
        wanted = max(1, min(WAKE_BYTES, missing_bytes - RECORD_BYTES_MAX))
        if wanted != self._bytes:
            self._bytes = wanted
            owned = transport.get_extra_info("socket")
            owned.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    @property
    def is_late(self) -> bool:
        """Return whether more than one byte is awaited."""
        return self._bytes > 1
