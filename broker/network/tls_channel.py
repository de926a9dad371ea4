"""The TLS layer of one connection, without a socket: it converts between encrypted and plaintext
bytes.

asyncio's TLS calls the protocol only after the handshake, so handshakes could not be counted or
limited. asyncio also needs a receive buffer per connection (docs/design/authentication.md).
"""

import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, cast

from penstock.base.buffers import Buffer

RECORD_BYTES_MAX: Final = 1 << 14
"""Maximum payload of one TLS record. See RFC 8446, section 5.1."""

FEED_BYTES_MAX: Final = 1 << 18
"""Maximum number of bytes that a channel should process at once, because its memory never shrinks
again.
"""

_WRITE_BYTES: Final = 1 << 18
"""Bytes encrypted per call. For larger writes, OpenSSL would grow its buffer, which causes
copies.
"""


class TlsBroken(Exception):
    """Raised if the peer does not speak TLS as configured. The connection must be closed. The
    message is for the log.
    """


class TlsChannel:
    """The server side of one TLS connection. After every call, the caller must send the bytes
    returned by `outgoing`.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_established = False
        self._broken: TlsBroken | None = None
        """The reason why no more data can be read. It is raised after all earlier bytes have been
        read.
        """

    def feed(self, data: memoryview) -> None:
        """Process bytes received from the peer."""
        self._incoming.write(data)

    def shake_hands(self) -> bool:
        """Continue the handshake. Return True if it is complete. Raises TlsBroken."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ValueError) as error:
            raise TlsBroken(_reason(error)) from None
        self.is_established = True
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt received bytes into `buffer`, up to its size. Return the number of bytes, or 0 if
        more bytes from the peer are needed. Raises TlsBroken, with an empty message if the peer has
        closed TLS.
        """
        read, size, filled = self._object.read, len(buffer), 0
        try:
            while self._broken is None and filled < size:  # each iteration decrypts one TLS record
                # Contrary to the type stubs, `read` returns a count if it is passed a buffer.
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
        """Encrypt the buffers, and return the bytes to send. Raises TlsBroken."""
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
        """Return pending bytes produced by TLS itself: handshakes, session tickets, alerts."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Return the close_notify alert, which closes TLS."""
        with suppress(ssl.SSLError, ValueError):  # do not wait for the peer's close_notify
            self._object.unwrap()
        return self.outgoing()

    def peer_certificate(self) -> bytes | None:
        """Return the verified certificate of the peer in DER format, or None if the peer sent
        none.
        """
        return self._object.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        return self._object.version() or ""


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)
