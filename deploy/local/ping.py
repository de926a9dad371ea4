"""Does a broker serve? One ApiVersions request and its answer, the first thing that every Kafka
client does.

Invariant: True means that the broker has caught up with the metadata, for it answers nobody before.
Never raises, never hangs.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Final

_CORRELATION_ID: Final = 1
_REQUEST: Final = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)
"""Size, ApiVersions, version 0, correlation id, no client id."""

_TIMEOUT_S: Final = 1.0


async def is_serving(host: str, port: int) -> bool:
    """One try, within a second."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_REQUEST)
                _size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
                return bool(correlation_id == _CORRELATION_ID)
            finally:
                writer.close()
    return False
