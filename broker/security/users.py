"""Find users and check their passwords.

A user is in the file of users or in the metadata; the file wins, so that no client can take over
the user of the brokers. PLAIN checks a password against the SCRAM credential of the user, because
passwords are not stored.
Invariants: the cost of a check does not tell whether the user exists. At most `_THREADS` checks run
at the same time, in threads; the others wait. A correct password is remembered for a minute under a
keyed hash, so that clients that connect often cost little.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.base.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    is_password,
    salted_password,
    sign,
)
from penstock.broker.security.exchange import AuthenticationFailed
from penstock.broker.security.plain import WRONG

_THREADS: Final = 2
_REMEMBERED_S: Final = 60.0
_REMEMBERED_MAX: Final = 10_000
_SALT_BYTES: Final = 26
"""The length of salts that Kafka's clients make."""

FileUsers = Mapping[tuple[ScramMechanism, str], ScramCredential]
"""Credentials of the users in the file."""


def credentials_of(
    users: Mapping[str, str], secret: bytes
) -> dict[tuple[ScramMechanism, str], ScramCredential]:
    """Derive the credentials of users. users: passwords by user. Takes milliseconds for each.

    Salts are those that unknown users get: a random one would change with each start and differ
    between brokers, and so reveal that the user exists.
    """
    found: dict[tuple[ScramMechanism, str], ScramCredential] = {}
    for user, password in users.items():
        for mechanism in ScramMechanism:
            salt = _seed_of(secret, mechanism, user)[:_SALT_BYTES]
            salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
            found[mechanism, user] = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
    return found


def _seed_of(secret: bytes, mechanism: ScramMechanism, user: str) -> bytes:
    return sign(ScramMechanism.SCRAM_SHA_512, secret, f"{mechanism}:{user}".encode())


class Users:
    """in_file: the users of the file as it is now. in_metadata: finds a user of the metadata.
    secret: makes up salts of unknown users; brokers with the same one make up the same.
    """

    def __init__(
        self,
        in_file: Callable[[], FileUsers],
        in_metadata: Callable[[ScramMechanism, str], ScramCredential | None],
        secret: Callable[[], bytes],
    ) -> None:
        self._in_file = in_file
        self._in_metadata = in_metadata
        self._secret = secret
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="password")
        self._remembered: dict[bytes, float] = {}
        self._key = secrets.token_bytes(32)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """See `broker.security.scram.Find`."""
        found = self._in_file().get((mechanism, user))
        if found is not None:
            return found
        if any((other, user) in self._in_file() for other in ScramMechanism):
            return None
        return self._in_metadata(mechanism, user)

    def pretend(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """See `broker.security.scram.Pretend`."""
        seed = _seed_of(self._secret(), mechanism, user)
        key = hashlib.new(mechanism.hash_name, seed).digest()
        return ScramCredential(seed[:_SALT_BYTES], key, key, ITERATIONS_MIN)

    async def check_password(self, user: str, password: str) -> None:
        """Check a password. Raises AuthenticationFailed."""
        wrong = AuthenticationFailed("the user or the password is wrong", told=WRONG)
        mechanism, credential = self._any_credential(user)
        known = credential or self.pretend(mechanism, user)
        loop = asyncio.get_running_loop()
        key = self._remembered_key(user, password, known)
        if self._remembered.get(key, 0.0) > loop.time():
            return
        is_right = await loop.run_in_executor(
            self._threads, is_password, mechanism, password, known
        )
        if credential is None or not is_right:
            raise wrong
        while len(self._remembered) >= _REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[key] = loop.time() + _REMEMBERED_S

    def _any_credential(self, user: str) -> tuple[ScramMechanism, ScramCredential | None]:
        for mechanism in sorted(ScramMechanism, reverse=True):
            credential = self.find(mechanism, user)
            if credential is not None:
                return mechanism, credential
        return ScramMechanism.SCRAM_SHA_512, None

    def _remembered_key(self, user: str, password: str, credential: ScramCredential) -> bytes:
        parts = (user.encode(), password.encode(), credential.salt, credential.stored_key)
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, text, "sha256")
