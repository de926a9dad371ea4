"""The TLS part of one connection, without a socket: bytes of the peer in, bytes for the peer out.

Invariants: what it holds is bounded by what the caller passes in. The caller sends what `outgoing`
returns after every call. `TlsBroken` ends the connection.
Must not: touch a socket or a clock.

asyncio's TLS calls the protocol only after the handshake, so that a handshake could neither be
counted nor limited, and needs a receive buffer for each connection (docs/design/authentication.md).
"""

import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, cast

from penstock.base.buffers import Buffer

RECORD_BYTES_MAX: Final = 1 << 14
"""Bytes of data in one TLS record. Source: RFC 8446, section 5.1."""

FEED_BYTES_MAX: Final = 1 << 18
"""Bytes that a channel should take at once: it keeps memory for the most that it ever got."""

_WRITE_BYTES: Final = 1 << 18
"""Bytes that one call encrypts. A larger piece makes OpenSSL grow its buffer, which copies."""


class TlsBroken(Exception):
    """Raised when the peer does not speak TLS as configured. The message is for the log."""


class TlsChannel:
    """The server's side of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_established = False
        self._broken: TlsBroken | None = None
        """Why nothing more can be read. It is raised once what came before was read."""

    def feed(self, data: memoryview) -> None:
        """Take bytes of the peer."""
        self._incoming.write(data)

    def shake_hands(self) -> bool:
        """Continue the handshake. Returns True once it is complete. Raises TlsBroken."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ValueError) as error:
            raise TlsBroken(_reason(error)) from None
        self.is_established = True
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into `buffer` what has arrived and fits. Returns the number of bytes, 0 when more
        of the peer is needed. Raises TlsBroken, without a message when the peer has ended TLS.
        """
        read, size, filled = self._object.read, len(buffer), 0
        try:
            while self._broken is None and filled < size:  # once for each TLS record
                # With a buffer it returns a count, which the stubs do not know.
                count = cast("int", read(size, buffer[filled:]))
                filled += count
                if not count:
                    self._broken = TlsBroken("")
        except ssl.SSLWantReadError:
            return filled
        except (ssl.SSLError, ValueError) as error:
            self._broken = TlsBroken(_reason(error))
        if self._broken is not None and not filled:
            raise self._broken
        return filled

    def encrypt(self, buffers: Iterable[Buffer]) -> list[bytes]:
        """Encrypt, and return what to send. Raises TlsBroken."""
        sent: list[bytes] = []
        try:
            for buffer in buffers:
                view = memoryview(buffer)
                for at in range(0, len(view), _WRITE_BYTES):
                    self._object.write(view[at : at + _WRITE_BYTES])
                    if self._outgoing.pending >= _WRITE_BYTES:
                        sent.append(self._outgoing.read())
        except (ssl.SSLError, ValueError) as error:
            raise TlsBroken(_reason(error)) from None
        if self._outgoing.pending:
            sent.append(self._outgoing.read())
        return sent

    def outgoing(self) -> bytes:
        """Return what TLS itself has to send: handshakes, tickets, alerts."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Return the message that ends TLS."""
        with suppress(ssl.SSLError, ValueError):  # the peer's answer is not awaited
            self._object.unwrap()
        return self.outgoing()

    def peer_certificate(self) -> bytes | None:
        """Return the verified certificate of the peer as DER; None if it showed none."""
        return self._object.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        return self._object.version() or ""


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)
