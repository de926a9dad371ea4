"""Check whether a broker serves, with one ApiVersions request, which every Kafka client sends
first, also before they authenticate.

Invariant: True means that the broker has caught up with the metadata: it answers no client before.
Returns within 1 s.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Final

from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity

_CORRELATION_ID: Final = 1
_REQUEST: Final = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)
"""Size, ApiVersions, version 0, correlation id, no client id."""

_TIMEOUT_S: Final = 1.0


async def is_serving(host: str, port: int, security: ClientSecurity = PLAINTEXT) -> bool:
    """Return True if the broker answers within 1 s. security: of the listener; only its TLS
    matters. Raises UsageError if its files cannot be used.
    """
    tls = security.tls()
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(_REQUEST)
                _size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
                return bool(correlation_id == _CORRELATION_ID)
            finally:
                writer.close()
    return False
