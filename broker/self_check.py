"""Check that this broker is reachable at its advertised addresses, by connecting to them like a
client, and determine the default advertised address.

The peer must respond to ApiVersions v0 or, if clients must present certificates, present a valid
TLS certificate. The check cannot prove that the peer is this broker.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from ssl import SSLCertVerificationError, SSLError
from typing import Final, TypeAlias

import structlog

from penstock.base.listeners import Listener
from penstock.broker.security.peers import OwnConnection
from penstock.protocol.client.async_connection import AsyncConnection
from penstock.protocol.errors import WireError

log = structlog.get_logger(__name__)

CHECK_S: Final = 10.0
"""How long to retry. DNS or a load balancer may need some time until a new broker is reachable."""
_ATTEMPT_S: Final = 2.0
_PAUSE_S: Final = 0.25

ConnectionOf: TypeAlias = Callable[[str], OwnConnection]
"""Returns the settings for connecting to a listener, by its name."""


def no_tls(_listener: str) -> OwnConnection:
    """The `ConnectionOf` for listeners without TLS."""
    return OwnConnection()


class UnreachableAsAdvertised(Exception):
    """Raised if the broker cannot reach itself at an advertised address."""

    def __init__(self, listener: Listener, problem: str) -> None:
        super().__init__(
            f"listener {listener.name} advertises {listener.address}, where this broker"
            f" cannot reach itself: {problem}. Set advertised.listeners to"
            f" {listener.name}://host:port as clients see it (or fix name service, port mapping or"
            " firewall); if only this machine cannot reach it, set advertised.check=off"
        )
        self.listener = listener


async def check(advertised: Sequence[Listener], connection_of: ConnectionOf = no_tls) -> None:
    """Check each advertised address. Raises UnreachableAsAdvertised for the first one that does not
    respond in time.
    """
    for listener in advertised:
        problem = await _problem(listener, connection_of(listener.name))
        if problem:
            raise UnreachableAsAdvertised(listener, problem)
        log.debug("advertised_address_reachable", listener=listener.name, address=listener.address)


async def warn(advertised: Sequence[Listener], connection_of: ConnectionOf = no_tls) -> None:
    """Check each listener separately and log a warning for each unreachable one."""
    for listener in advertised:
        try:
            await check([listener], connection_of)
        except UnreachableAsAdvertised as error:
            log.warning(
                "advertised_address_unreachable",
                listener=listener.name,
                address=listener.address,
                reason=str(error),
            )


async def _problem(listener: Listener, own: OwnConnection) -> str:
    """Return the error of the last attempt, or "" if an attempt succeeded."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CHECK_S
    while True:
        problem = await _try(listener, own)
        if not problem or loop.time() + _PAUSE_S > deadline:
            return problem
        await asyncio.sleep(_PAUSE_S)


async def _try(listener: Listener, own: OwnConnection) -> str:
    try:
        async with asyncio.timeout(_ATTEMPT_S):
            connection = await AsyncConnection.open(listener.host, listener.port, tls=own.tls)
            try:
                if own.asks:
                    await connection.greet()
            finally:
                connection.close()
    except TimeoutError:
        return f"no response within {_ATTEMPT_S:g} s"
    except asyncio.IncompleteReadError:
        return "the peer closed the connection without a response"
    except SSLCertVerificationError as error:
        return (
            f"the certificate does not fit: {error.verify_message}. It must name the advertised"
            " host (ssl.keystore.location), and its CA must be in ssl.truststore.location"
        )
    except SSLError as error:
        if not own.asks and "ALERT" in (error.reason or ""):
            return ""  # the peer has presented its certificate and rejects this one's
        return f"TLS failed: {error.reason}"
    except WireError:
        return "the peer does not speak the Kafka protocol"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def machine_host(controller: str) -> str:
    """Return the local address on the route to the controller. Connecting a datagram socket only
    queries the routing table and sends no packets.
    """
    host, _, port = controller.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
