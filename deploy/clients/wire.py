"""Connect to the brokers of the selected cluster, for requests that confluent-kafka does not
support.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from penstock.base.listeners import SecurityProtocol
from penstock.deploy.clients.restarts import has_restarted
from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.target import Target, find_brokers, no_broker
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import NoBroker, NoResponse

_GREETING_S: Final = 5.0
_T = TypeVar("_T")


class WireClient(Connection):
    """Connects to the first bootstrap server that responds. Use as a context manager."""

    def __init__(self, bootstrap: str, security: ClientSecurity | None = None) -> None:
        """security: how to connect; None for the settings of `--command-config`."""
        target, connect = find_brokers(bootstrap), super().__init__
        reached(target, lambda: connect(target.bootstrap, security or current_security()))


def reached(target: Target, connect: Callable[[], _T]) -> _T:
    """Return the result of `connect`, retrying while the brokers restart. Raises KafkaFailed."""
    try:
        return connect()
    except NoBroker as error:
        reason = error.reason
    if has_restarted(target.bootstrap):
        with suppress(NoBroker):
            return connect()
    raise no_broker(target, reason)


def check_reachable(target: Target, security: ClientSecurity) -> None:
    """Raise KafkaFailed if no broker responds with TLS, or without it, as the client connects."""
    reason = _why_unreachable(target, security)
    if reason is not None and has_restarted(target.bootstrap):
        reason = _why_unreachable(target, security)
    if reason is not None:
        raise no_broker(target, reason)


def _why_unreachable(target: Target, security: ClientSecurity) -> str | None:
    """Return None if a broker responds, otherwise the reason; empty if it is unknown."""
    reason = ""
    has_tls = security.protocol.has_tls
    without_login = replace(
        security, protocol=SecurityProtocol.SSL if has_tls else SecurityProtocol.PLAINTEXT
    )
    for address in target.bootstrap.split(","):
        try:
            with Connection(address, without_login) as connection:
                if not has_tls:  # a handshake is a response, too
                    connection.greet(_GREETING_S)
                return None
        except NoBroker as error:
            reason = error.reason
        except NoResponse:
            pass
    return reason
