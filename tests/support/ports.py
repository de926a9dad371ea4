"""Ports for processes that are started later or restarted."""

from random import SystemRandom

from penstock.deploy.local.ports import is_free

_RANGE = (12_000, 20_000)
_TRIES_MAX = 1_000
_given: set[int] = set()


def free_ports(requested: int) -> list[int]:
    """Return ports that no other process takes while their process is down.

    They are below the kernel's ephemeral range, so neither connections nor servers on port 0 get
    them, and below those of `penstock dev`. This process returns each port once.
    """
    return [free_port() for _ in range(requested)]


def free_port() -> int:
    """Return one of free_ports."""
    for _ in range(_TRIES_MAX):
        port = SystemRandom().randrange(*_RANGE)
        if port not in _given and is_free("127.0.0.1", port):
            _given.add(port)
            return port
    raise AssertionError(f"no free port in {_RANGE}")
