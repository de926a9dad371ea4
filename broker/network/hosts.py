"""Resolve the hosts of quotas to addresses.

A host name is resolved to all its addresses when its quota is set. If they change, the quota must
be set again.
"""

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

_TIMEOUT_S: Final = 5.0


async def resolve(hosts: Iterable[str]) -> dict[str, list[str]]:
    """Return the addresses of each host. The list is empty for a host that cannot be resolved
    within 5 s.
    """
    wanted = list(dict.fromkeys(hosts))
    return dict(zip(wanted, await asyncio.gather(*map(_addresses, wanted)), strict=True))


async def _addresses(host: str) -> list[str]:
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, None, type=socket.SOCK_STREAM
            )
    except (OSError, UnicodeError, TimeoutError):
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
