"""Connect to the brokers that a command means, for requests that confluent-kafka lacks."""

from contextlib import suppress
from dataclasses import replace
from typing import Final

from penstock.base.listeners import SecurityProtocol
from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.target import Target, find_brokers, no_broker
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import NoBroker, NoResponse

_GREETING_S: Final = 5.0


class WireClient(Connection):
    """Connects to the first bootstrap server that responds. Use as a context manager."""

    def __init__(self, bootstrap: str, security: ClientSecurity | None = None) -> None:
        """security: how to connect; None as `--command-config` says."""
        target = find_brokers(bootstrap)
        try:
            super().__init__(target.bootstrap, security or current_security())
        except NoBroker:
            raise no_broker(target) from None


def check_reachable(target: Target, security: ClientSecurity) -> None:
    """Raise KafkaFailed if no address of the target has a broker that speaks TLS, or does not, as
    the client does.
    """
    has_tls = security.protocol.has_tls
    without_login = replace(
        security, protocol=SecurityProtocol.SSL if has_tls else SecurityProtocol.PLAINTEXT
    )
    for address in target.bootstrap.split(","):
        with suppress(NoResponse), Connection(address, without_login) as connection:
            if not has_tls:  # a handshake is a response, too
                connection.greet(_GREETING_S)
            return
    raise no_broker(target)
