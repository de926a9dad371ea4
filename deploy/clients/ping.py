"""Check whether a broker serves clients, with an ApiVersions request, which requires no
authentication.

Invariant: True means that the broker has caught up with the metadata, because it does not respond
earlier. The check takes at most 1 s.
"""

import asyncio
from typing import Final

from penstock.protocol.client.async_connection import AsyncConnection
from penstock.protocol.errors import WireError

_TIMEOUT_S: Final = 1.0


async def is_serving(host: str, port: int) -> bool:
    """Return True if the broker responds within 1 s, without TLS."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            connection = await AsyncConnection.open(host, port)
            try:
                await connection.greet()
            finally:
                connection.close()
    except (OSError, EOFError, WireError):  # includes timeouts
        return False
    return True
