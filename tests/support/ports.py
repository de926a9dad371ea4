"""Ports for processes that are started later, or again."""

import socket
from itertools import count
from random import SystemRandom

_FIRST, _COUNT = 12_000, 8_000
_given: set[int] = set()


def free_ports(wanted: int) -> list[int]:
    """Below the kernel's own range, so that no connection, and no server that takes any port, gets one while its process is away; below
    that of `penstock dev` too. Each is given once by this process.
    """
    found: list[int] = []
    begin = SystemRandom().randrange(_COUNT)
    for step in count():
        port = _FIRST + (begin + step) % _COUNT
        if len(found) == wanted:
            break
        if port not in _given and _is_free(port):
            _given.add(port)
            found.append(port)
    return found


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
