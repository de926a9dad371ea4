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
from penstock.deploy.local.plan import (
    PORT_FLAGS,
    ClusterOptions,
    Ports,
    Role,
    broker_ports,
    controller_ports,
)
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

    def claim(host: str, port: int, role: Role) -> int:
        return _claim(host, port, PORT_FLAGS[role], taken, reserved=reserved, rng=rng)

    if options.port and options.port + options.brokers - 1 > PORT_MAX:
        raise UsageError(
            f"--port {options.port} is too high for {counted(options.brokers, 'broker')}: the last"
            " port is 65535"
        )
    taken: set[int] = set()
    brokers = [claim(options.host, port, "broker") for port in broker_ports(options)]
    if options.controller_port and options.controller_port + options.controllers - 1 > PORT_MAX:
        raise UsageError(
            f"--controller-port {options.controller_port} is too high for "
            f"{counted(options.controllers, 'controller')}: the last port is 65535"
        )
    controllers = [claim(options.host, port, "controller") for port in controller_ports(options)]
    store = claim("127.0.0.1", options.store_port, "store") if options.store == "moto" else 0
    return Ports(tuple(brokers), tuple(controllers), store)


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
