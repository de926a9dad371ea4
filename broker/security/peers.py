"""How to connect to other brokers: the listener, TLS, and the user of this broker. New connections
use the current contents of the files.
"""

import ssl
from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.security.access import ClientAccess
from penstock.broker.security.config import AUTH_NONE
from penstock.protocol.sasl.login import SaslLogin
from penstock.protocol.sasl.nonce import new_nonce


class OwnConnection(NamedTuple):
    """How a broker connects to its own listener. tls: None without TLS. asks: whether to send a
    request. If clients must present certificates, the listener may reject the broker's own
    certificate, so only the handshake is tested.
    """

    tls: ssl.SSLContext | None = None
    asks: bool = True


class PeerAccess:
    """Access to other brokers. listeners: names of this broker's listeners, which other brokers
    also have.
    """

    def __init__(self, access: ClientAccess, listeners: Sequence[str]) -> None:
        self._access = access
        self._config = access.config
        self.listener = self._config.inter_broker_listener_name.upper()
        """Name of the listener to connect to, or empty for the first one."""
        self._own_listener = self.listener or listeners[0]
        self.protocol = self._config.protocol_of(self._own_listener)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to other brokers, or None if their listener does
        not use TLS.
        """
        if not self.protocol.has_tls:
            return None
        return self._access.files.tls(self._own_listener).to_brokers

    def own_connection(self, listener: str) -> OwnConnection:
        """Return the settings with which this broker connects to its own listener, to check that it
        is reachable.
        """
        if not self._config.protocol_of(listener).has_tls:
            return OwnConnection()
        tls = self._access.files.tls(listener)
        if listener == self._own_listener:
            return OwnConnection(tls.to_brokers)
        return OwnConnection(tls.to_itself, asks=self._config.client_auth(listener) == AUTH_NONE)

    def login(self) -> SaslLogin | None:
        """Return a new SASL login, or None if the listener does not use SASL."""
        if not self.protocol.has_sasl:
            return None
        user = self._config.sasl_inter_broker_username
        return SaslLogin(
            self._config.sasl_mechanism_inter_broker_protocol,
            user,
            self._access.files.users.passwords[user],
            nonce=new_nonce(),
        )
