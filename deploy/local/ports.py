"""Find ports: check the given ports, or choose free ports outside the kernel's ephemeral range.

Invariant: every port is tried before any process starts. If a free port is taken in the meantime,
the process exits, and its supervisor raises PortTaken.
"""

import errno
import socket
from collections.abc import Collection
from random import Random
from typing import Final

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import PORT_MAX, PortTaken, UsageError
from penstock.deploy.local.plan import PORT_FLAGS, ClusterOptions, Ports, Role
from penstock.deploy.output import counted

_FREE_RANGE: Final = (20_000, 32_000)
"""Below Linux's ephemeral ports, so that no client connection takes the port of a restarting
broker.
"""

_TRIES_MAX: Final = 200


def find_ports(options: ClusterOptions, rng: Random, reserved: Collection[int] = ()) -> Ports:
    """Find all ports. reserved: ports of other clusters, whose processes may be starting. Raises
    PortTaken with the flag that chooses another one.
    """

    taken: set[int] = set()

    def claim(host: str, first: int, role: Role, count: int) -> tuple[int, ...]:
        """Claim consecutive ports from the first one, or any ports if it is 0."""
        flag = PORT_FLAGS[role]
        if first and first + count - 1 > PORT_MAX:
            raise UsageError(
                f"{flag} {first} is too high for {counted(count, role)}: the last port is"
                f" {PORT_MAX}"
            )
        wanted = range(first, first + count) if first else [0] * count
        return tuple(_claim(host, port, flag, taken, reserved=reserved, rng=rng) for port in wanted)

    brokers = claim(options.host, options.port, "broker", options.brokers)
    controllers = claim(options.host, options.controller_port, "controller", options.controllers)
    is_moto = options.store == "moto"
    store = claim("127.0.0.1", options.store_port, "store", 1)[0] if is_moto else 0
    return Ports(brokers, controllers, store)


def is_free(host: str, port: int) -> bool:
    """Return True if the port can be bound. Raises ExpectedError if the address does not belong to
    this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise ExpectedError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return True


def _claim(
    host: str, port: int, flag: str, taken: set[int], *, reserved: Collection[int], rng: Random
) -> int:
    if port:
        if port in taken:
            raise UsageError(f"{flag} {port} is also a port of another process of this cluster")
        if port in reserved or not is_free(host, port):
            raise PortTaken(host, port, flag)
        taken.add(port)
        return port
    for _ in range(_TRIES_MAX):
        candidate = rng.randrange(*_FREE_RANGE)
        if candidate not in {*taken, *reserved} and is_free(host, candidate):
            taken.add(candidate)
            return candidate
    raise ExpectedError(
        f"no free port found on {host} between {_FREE_RANGE[0]} and {_FREE_RANGE[1]}; choose"
        f" one with {flag}"
    )
