"""SASL client: the tokens of one authentication, in order. Pure; nonces are parameters.

token = login.first(); while token is not None: token = login.answer(response)
"""

from typing import Final

from penstock.base.scram import SCRAM_BY_NAME
from penstock.broker.security.config import OAUTHBEARER, PLAIN
from penstock.broker.security.exchange import AuthenticationFailed
from penstock.broker.security.oauthbearer import bearer_message
from penstock.broker.security.plain import plain_message
from penstock.broker.security.scram import ScramClient

LOGIN_MECHANISMS: Final = (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER)


class SaslLogin:
    """password: the token, for OAUTHBEARER. nonce: random, used once."""

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str) -> None:
        self.mechanism = mechanism
        self._user = user
        self._password = password
        self._answers = 0
        self._scram = (
            ScramClient(SCRAM_BY_NAME[mechanism], user, password, nonce=nonce)
            if mechanism in SCRAM_BY_NAME
            else None
        )

    def first(self) -> bytes:
        if self._scram is not None:
            return self._scram.first()
        if self.mechanism == PLAIN:
            return plain_message(self._user, self._password)
        return bearer_message(self._password)

    def answer(self, data: bytes) -> bytes | None:
        """Return the next token; None once the login is complete. Raises AuthenticationFailed."""
        self._answers += 1
        if self._scram is None:
            if data:
                raise AuthenticationFailed(f"authentication failed: {data[:200]!r}")
            return None
        if self._answers == 1:
            return self._scram.final(data)
        self._scram.check(data)
        return None
