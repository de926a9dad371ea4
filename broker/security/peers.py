"""Know how to connect to other brokers: which of their listeners, TLS, and the user of this broker.

Invariant: reads the files as they are now, so that a new connection uses the newest.
"""

import ssl
from collections.abc import Sequence

from base.listeners import SecurityProtocol
from broker.security.access import ClientAccess, new_nonce
from broker.security.sasl_client import SaslLogin


class PeerAccess:
    """listeners: names of the listeners of this broker, which others have as well."""

    def __init__(self, access: ClientAccess, listeners: Sequence[str]) -> None:
        self._access = access
        self._config = access.config
        self.listener = self._config.inter_broker_listener_name.upper()
        """Name of the listener to connect to; empty for the first one."""
        self.protocol = self._config.protocol_of(self.listener or listeners[0])

    def tls_of(self, protocol: SecurityProtocol) -> ssl.SSLContext | None:
        """Return the context for a listener of another broker; None if it has no TLS."""
        tls = self._access.files.contents.tls
        if not protocol.has_tls:
            return None
        assert tls is not None, "SecurityConfig.protocols has checked that there is a keystore"
        return tls.to_brokers

    def login(self) -> SaslLogin | None:
        """Return a new login; None if the listener has no SASL."""
        if not self.protocol.has_sasl:
            return None
        user = self._config.sasl_inter_broker_username
        return SaslLogin(
            self._config.sasl_mechanism_inter_broker_protocol,
            user,
            self._access.files.contents.passwords[user],
            nonce=new_nonce(),
        )
