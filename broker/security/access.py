"""Decide how clients get in: the protocol of each listener, TLS contexts, SASL exchanges and the
principals of certificates.

    access = ClientAccess(config, find_user=...); await access.start(); ...; await access.close()

Must not: know sockets or requests.
"""

import asyncio
import secrets
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from base.clock import wall_ms
from base.listeners import SecurityProtocol
from base.principal import ANONYMOUS, USER, Principal
from base.scram import SCRAM_BY_NAME, ScramCredential, ScramMechanism
from broker.security.config import OAUTHBEARER, PLAIN, SecurityConfig
from broker.security.distinguished_names import distinguished_name
from broker.security.exchange import AuthenticationFailed, Exchange
from broker.security.files import SecurityFiles
from broker.security.keys import TokenKeys
from broker.security.oauthbearer import OAuthBearerServer
from broker.security.plain import PlainServer
from broker.security.sasl import SaslState
from broker.security.scram import ScramServer
from broker.security.tokens import TokenRules
from broker.security.users import Users

_NONCE_BYTES: Final = 24


def new_nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


def _no_user(_mechanism: ScramMechanism, _user: str) -> ScramCredential | None:
    return None


class ClientAccess:
    """find_user: finds the credential of a user in the metadata."""

    def __init__(
        self,
        config: SecurityConfig | None = None,
        *,
        find_user: Callable[[ScramMechanism, str], ScramCredential | None] = _no_user,
    ) -> None:
        self.config = config or SecurityConfig()
        self.files = SecurityFiles(self.config)
        self.users = Users(
            lambda: self.files.contents.credentials,
            find_user,
            lambda: self.files.contents.secret,
        )
        self.keys = _token_keys(self.config)
        self.failed_count = 0
        """Authentications that failed."""
        self._rules = self.config.principal_rules()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the files, and look for changes from now on. Raises SecurityFileInvalid."""
        await self.files.read()
        self._watch = asyncio.get_running_loop().create_task(self.files.watch())

    async def close(self) -> None:
        self.users.close()
        if self.keys is not None:
            await self.keys.close()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    def tls_context(self, protocol: SecurityProtocol) -> ssl.SSLContext:
        tls = self.files.contents.tls
        assert tls is not None, "SecurityConfig.protocols has checked that there is a keystore"
        return tls.for_sasl if protocol.has_sasl else tls.for_clients

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return who shows this certificate (DER). Raises AuthenticationFailed."""
        if certificate is None:
            return ANONYMOUS
        try:
            subject = distinguished_name(certificate)
        except ValueError as error:
            raise AuthenticationFailed(f"the certificate cannot be read: {error}") from None
        name = self._rules.name_of(subject)
        if not name:
            raise AuthenticationFailed(
                f"no rule of ssl.principal.mapping.rules matches the certificate of {subject!r}"
            )
        return Principal(USER, name)

    def new_sasl(self) -> SaslState:
        return SaslState(
            self.config.sasl_enabled_mechanisms,
            self._exchange,
            max_reauth_ms=self.config.connections_max_reauth_ms,
        )

    def _exchange(self, mechanism: str) -> Exchange:
        if mechanism == PLAIN:
            return PlainServer()
        if mechanism == OAUTHBEARER:
            return OAuthBearerServer()
        users = self.users
        return ScramServer(SCRAM_BY_NAME[mechanism], users.find, users.pretend, nonce=new_nonce())


def _token_keys(config: SecurityConfig) -> TokenKeys | None:
    if OAUTHBEARER not in config.sasl_enabled_mechanisms:
        return None
    rules = TokenRules(
        audiences=config.sasl_oauth_expected_audience,
        issuer=config.sasl_oauth_expected_issuer,
        skew_ms=config.sasl_oauth_clock_skew_seconds * 1_000,
        scope_claim=config.sasl_oauth_scope_claim_name,
        user_claim=config.sasl_oauth_sub_claim_name,
    )
    return TokenKeys(
        config.sasl_jwks_endpoint_url,
        rules,
        refresh_ms=config.sasl_jwks_endpoint_refresh_ms,
        now_ms=wall_ms,
    )
