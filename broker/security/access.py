"""Authentication at each listener: TLS contexts, SASL exchanges and certificate principals.

access = ClientAccess(config, find_users=...); await access.start(); ...; await access.close()
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress

from penstock.base.clock import wall_ms
from penstock.base.listeners import SecurityProtocol
from penstock.base.principal import ANONYMOUS, USER, Principal
from penstock.base.scram import SCRAM_BY_NAME
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.delegation_tokens import DelegationTokens, FindToken
from penstock.broker.security.distinguished_names import distinguished_name
from penstock.broker.security.exchange import Exchange
from penstock.broker.security.files import SecurityFiles
from penstock.broker.security.keys import TokenKeys
from penstock.broker.security.oauthbearer import OAuthBearerServer
from penstock.broker.security.plain import PlainServer
from penstock.broker.security.sasl import SaslState
from penstock.broker.security.scram import ScramServer
from penstock.broker.security.tokens import TokenRules
from penstock.broker.security.users import Users
from penstock.controller.metadata.scram import ScramImage
from penstock.protocol.sasl.mechanisms import OAUTHBEARER, PLAIN, AuthenticationFailed
from penstock.protocol.sasl.nonce import new_nonce


def _no_token(_token_id: str) -> None:
    return None


class ClientAccess:
    """Authentication of clients. find_users: returns the current users in the metadata. find_token:
    looks up a delegation token in the metadata.
    """

    def __init__(
        self,
        config: SecurityConfig | None = None,
        *,
        find_users: Callable[[], ScramImage] = ScramImage,
        find_token: FindToken = _no_token,
    ) -> None:
        self.config = config or SecurityConfig()
        self.delegation_tokens = DelegationTokens(
            self.config.delegation_token_secret_key, find_token, wall_ms
        )
        self.files = SecurityFiles(self.config)
        self.users = Users(
            lambda: self.files.users.credentials, find_users, lambda: self.files.users.secret
        )
        self.failed_count = 0
        """Number of failed authentications."""
        self._listeners: dict[str, ListenerAccess] = {}
        self._keys: dict[object, TokenKeys] = {}
        """Token keys by settings. Listeners with the same settings share them."""
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the files, and start watching them for changes. Raises SecurityFileInvalid."""
        await self.files.read()
        self._watch = asyncio.get_running_loop().create_task(self.files.watch())

    async def close(self) -> None:
        self.users.close()
        for keys in self._keys.values():
            await keys.close()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    def listener(self, name: str) -> "ListenerAccess":
        """Return the authentication settings of a listener of this broker."""
        found = self._listeners.get(name)
        if found is None:
            found = self._listeners[name] = ListenerAccess(self, name)
        return found

    def token_keys(self, config: SecurityConfig) -> TokenKeys | None:
        """Return the token keys for a listener with these settings, or None without OAUTHBEARER."""
        if OAUTHBEARER not in config.sasl_enabled_mechanisms:
            return None
        rules = TokenRules(
            audiences=config.sasl_oauth_expected_audience,
            issuer=config.sasl_oauth_expected_issuer,
            skew_ms=config.sasl_oauth_clock_skew_seconds * 1_000,
            required_scopes=config.sasl_oauth_required_scope,
            scope_claim=config.sasl_oauth_scope_claim_name,
            user_claim=config.sasl_oauth_sub_claim_name,
        )
        url, refresh_ms = config.sasl_jwks_endpoint_url, config.sasl_jwks_endpoint_refresh_ms
        same = url, refresh_ms, rules
        if same not in self._keys:
            self._keys[same] = TokenKeys(url, rules, refresh_ms=refresh_ms, now_ms=wall_ms)
        return self._keys[same]


class ListenerAccess:
    """Authentication on one listener."""

    def __init__(self, access: ClientAccess, name: str) -> None:
        self.config = access.config.of_listener(name)
        self.keys = access.token_keys(self.config)
        self._access = access
        self._name = name
        self._rules = self.config.principal_rules()

    def tls_context(self, protocol: SecurityProtocol) -> ssl.SSLContext:
        tls = self._access.files.tls(self._name)
        return tls.for_sasl if protocol.has_sasl else tls.for_clients

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal for this certificate, in DER format. Raises AuthenticationFailed."""
        if certificate is None:
            return ANONYMOUS
        try:
            subject = distinguished_name(certificate)
        except ValueError as error:
            raise AuthenticationFailed(f"cannot parse the certificate: {error}") from None
        name = self._rules.name_of(subject)
        if not name:
            raise AuthenticationFailed(
                "no rule in ssl.principal.mapping.rules matches the certificate subject"
                f" {subject!r}"
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
        users = self._access.users
        return ScramServer(
            SCRAM_BY_NAME[mechanism],
            users.find,
            users.pretend,
            nonce=new_nonce(),
            find_token=self._access.delegation_tokens.login,
            pretend_token=self._access.delegation_tokens.pretend,
        )
