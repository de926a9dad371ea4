"""Delegation tokens (KIP-48): derive their secrets, and authenticate clients with them over SCRAM.

The password of a token is the Base64-encoded HMAC-SHA-512 of its id with
`delegation.token.secret.key`, so the metadata contains no secrets. Brokers with the same key accept
the same tokens.
"""

import base64
import hmac
from collections.abc import Callable
from typing import Final

from penstock.base.clock import WallClock
from penstock.base.principal import USER
from penstock.base.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    digest,
    salted_password,
)
from penstock.broker.security.scram import TokenLogin
from penstock.controller.metadata.records import DelegationTokenRecord

LOGINS_MAX: Final = 10_000
_HASH: Final = "sha512"
_SALT_BYTES: Final = 26

FindToken = Callable[[str], DelegationTokenRecord | None]
"""Looks up a delegation token in the metadata, by its id."""


class DelegationTokens:
    """Derives and caches the credentials of delegation tokens. Deriving one takes 3 ms of CPU. At
    most LOGINS_MAX are cached; the oldest one is dropped first.

    key: `delegation.token.secret.key`; if empty, delegation tokens are disabled. now_ms: wall
    clock.
    """

    def __init__(self, key: str, find: FindToken, now_ms: WallClock) -> None:
        self._key = key.encode()
        self._find = find
        self._now_ms = now_ms
        self._logins: dict[tuple[ScramMechanism, str], ScramCredential] = {}

    @property
    def are_on(self) -> bool:
        return bool(self._key)

    def hmac_of(self, token_id: str) -> bytes:
        """Return the 64-byte secret of a token."""
        return hmac.digest(self._key, token_id.encode(), _HASH)

    def is_of(self, token_id: str, shown: bytes) -> bool:
        """Return whether `shown` is the secret of the token."""
        return hmac.compare_digest(self.hmac_of(token_id), shown)

    def login(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """See `broker.security.scram.FindToken`."""
        token = self._find(token_id) if self.are_on else None
        if token is None or token.expiry_ms <= self._now_ms():
            return None
        owner = token.owner.removeprefix(f"{USER}:")
        return TokenLogin(self._credential(mechanism, token_id), owner, token.expiry_ms)

    def pretend(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """Generate a credential for an unknown token, with the salt that the token would have."""
        key = digest(mechanism, self._key)
        return ScramCredential(self._salt(mechanism, token_id), key, key, ITERATIONS_MIN)

    def _salt(self, mechanism: ScramMechanism, token_id: str) -> bytes:
        text = f"salt:{mechanism}:{token_id}".encode()
        return hmac.digest(self._key, text, _HASH)[:_SALT_BYTES]

    def _credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        known = self._logins.get((mechanism, token_id))
        if known is not None:
            return known
        password = base64.b64encode(self.hmac_of(token_id)).decode()
        salt = self._salt(mechanism, token_id)
        salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
        while len(self._logins) >= LOGINS_MAX:
            del self._logins[next(iter(self._logins))]
        made = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
        self._logins[mechanism, token_id] = made
        return made
