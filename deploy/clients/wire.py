"""Connect to the brokers of the selected cluster, for requests that confluent-kafka does not
support.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock.deploy.clients.restarts import has_restarted
from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.target import Target, find_brokers, no_broker
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import NoBroker

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
    """Connect and log in as the client will. Raises KafkaFailed if no broker responds, or none
    accepts the client's TLS or login.
    """
    reached(target, lambda: Connection(target.bootstrap, security).close())
