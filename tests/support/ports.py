"""Ports for processes that are started later, or again."""

from random import SystemRandom

from deploy.local.ports import is_free

_RANGE = (12_000, 20_000)
_TRIES_MAX = 1_000
_given: set[int] = set()


def free_ports(wanted: int) -> list[int]:
    """Below the kernel's own range, so that no connection, and no server that takes any port, gets
    one while its process is away; below that of `penstock dev` too. Each is given once by this
    process.
    """
    return [free_port() for _ in range(wanted)]


def free_port() -> int:
    """See free_ports."""
    for _ in range(_TRIES_MAX):
        port = SystemRandom().randrange(*_RANGE)
        if port not in _given and is_free("127.0.0.1", port):
            _given.add(port)
            return port
    raise AssertionError(f"no free port in {_RANGE}")
