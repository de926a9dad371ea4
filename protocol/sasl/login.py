"""Log in as a client: generate the requests of one authentication, in order.

Invariant: pure; nonces are parameters. The requests are sent by the blocking or the asyncio
connection.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

from penstock.base.scram import SCRAM_BY_NAME
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.gen import sasl_authenticate, sasl_handshake
from penstock.protocol.sasl.mechanisms import (
    PLAIN,
    AuthenticationFailed,
    bearer_message,
    plain_message,
)
from penstock.protocol.sasl.scram import ScramClient


class Request(NamedTuple):
    api: ApiSpec
    message: object
    kind: type[Any]


Requests: TypeAlias = Generator[Request, Any, bytes]
"""Yields requests and receives their responses through `send`."""


class SaslLogin:
    """password: the token, for OAUTHBEARER. nonce: random, used once."""

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str) -> None:
        self.session_lifetime_ms = 0
        """Lifetime of the session, set by the last response; 0 if unlimited."""
        self._mechanism = mechanism
        self._user = user
        self._password = password
        self._scram = (
            ScramClient(SCRAM_BY_NAME[mechanism], user, password, nonce=nonce)
            if mechanism in SCRAM_BY_NAME
            else None
        )

    def requests(self) -> Requests:
        """Yield the requests of the login. Raises AuthenticationFailed."""
        chosen = yield Request(
            apis.SASL_HANDSHAKE,
            sasl_handshake.SaslHandshakeRequest(self._mechanism),
            sasl_handshake.SaslHandshakeResponse,
        )
        if chosen.error_code:
            raise AuthenticationFailed(
                f"the brokers have no {self._mechanism}; use one of {', '.join(chosen.mechanisms)}"
            )
        if self._scram is None:
            is_plain = self._mechanism == PLAIN
            refused = yield from self._authenticate(
                plain_message(self._user, self._password)
                if is_plain
                else bearer_message(self._password)
            )
            if refused:
                raise AuthenticationFailed(f"the server rejects the login: {refused[:200]!r}")
            return refused
        challenge = yield from self._authenticate(self._scram.first())
        verifier = yield from self._authenticate(self._scram.final(challenge))
        self._scram.check(verifier)
        return verifier

    def _authenticate(self, token: bytes) -> Requests:
        response = yield Request(
            apis.SASL_AUTHENTICATE,
            sasl_authenticate.SaslAuthenticateRequest(token),
            sasl_authenticate.SaslAuthenticateResponse,
        )
        if response.error_code:
            raise AuthenticationFailed(response.error_message)
        self.session_lifetime_ms = response.session_lifetime_ms
        return bytes(response.auth_bytes)
