"""Let a socket wake the event loop only when enough of a frame has arrived.

TLS clients send a frame of 1 MB in 64 records of 16 KiB, each with a system call of its own.
Without this, each record is a turn of the event loop: measured, twice the CPU time in the kernel.
Invariant: the loop is woken at the latest when the last byte of the frame has arrived, and when
the peer closes.
Source: SO_RCVLOWAT in socket(7).
"""

import asyncio
import socket
from typing import Final

from penstock.broker.network.tls_channel import RECORD_BYTES_MAX

WAKE_BYTES: Final = 1024 * 1024
"""Most bytes that wait in the kernel before the event loop is woken."""


class WakeLimit:
    """When the socket of one TLS connection wakes the event loop."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 1

    def expect(self, transport: asyncio.Transport, missing_bytes: int) -> None:
        """Wake once there is a good part of what the frame still needs; 0 for the first byte.

        Up to one record of it may be inside of TLS already, so that much is left out.
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
