"""Look up users and check their passwords.

Users in the users file take precedence over users in the metadata, so that no client can take over
the brokers' user. PLAIN passwords are checked with the user's SCRAM credential, because passwords
are not stored.
"""

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.base.scram import (
    ITERATIONS_MIN,
    KAFKA_SALT_BITS,
    CredentialShape,
    ScramCredential,
    ScramMechanism,
    credential_of,
    is_password,
    salted_password,
    sign,
)
from penstock.broker.security.plain import WRONG
from penstock.controller.metadata.scram import ScramImage
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

_THREADS: Final = 2
_REMEMBERED_S: Final = 60.0
_REMEMBERED_MAX: Final = 10_000
_MECHANISM_COUNT: Final = len(ScramMechanism)
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
FileUsers = Mapping[tuple[ScramMechanism, str], ScramCredential]
"""Credentials of the users in the users file."""


def credentials_of(
    users: Mapping[str, str], secret: bytes
) -> dict[tuple[ScramMechanism, str], ScramCredential]:
    """Derive the credentials of users. users: passwords by user name. This takes several
    milliseconds per user.

    Salts are derived in the same way as for unknown users. Random salts would change with each
    start and differ between brokers, and thus reveal that the user exists.
    """
    found: dict[tuple[ScramMechanism, str], ScramCredential] = {}
    for user, password in users.items():
        for mechanism in ScramMechanism:
            shape = _file_shape(mechanism)
            salt = _salt_of(_seed_of(secret, mechanism, user), shape)
            salted = salted_password(mechanism, password, salt, shape.iterations)
            found[mechanism, user] = credential_of(mechanism, salted, salt, shape.iterations)
    return found


def _file_shape(mechanism: ScramMechanism) -> CredentialShape:
    """Return the properties of credentials in the users file, which match those of users created by
    Kafka tools.
    """
    return CredentialShape(mechanism, 0, ITERATIONS_MIN)


def _seed_of(secret: bytes, mechanism: ScramMechanism, user: str) -> bytes:
    return sign(ScramMechanism.SCRAM_SHA_512, secret, f"{mechanism}:{user}".encode())


def _salt_of(seed: bytes, shape: CredentialShape) -> bytes:
    if shape.salt_bytes:
        return hashlib.shake_256(seed).digest(shape.salt_bytes)
    number = int.from_bytes(seed) >> (8 * len(seed) - KAFKA_SALT_BITS)
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits)) or _DIGITS[:1]


def chosen(seed: bytes, counts: Mapping[CredentialShape, int]) -> CredentialShape:
    """Select one of the shapes, with probabilities proportional to their counts. The same seed
    always selects the same shape; if a count changes, only a few seeds select a different shape
    (weighted rendezvous hashing).
    """

    def distance(shape: CredentialShape) -> float:
        drawn = int.from_bytes(hashlib.sha256(seed + repr(tuple(shape)).encode()).digest()[:8])
        return -math.log((drawn + 1) / (1 << 64)) / counts[shape]

    return min(sorted(counts), key=distance)


class Users:
    """The users of one broker. Neither the time for a check nor the first response in a SCRAM
    exchange reveals whether a user exists. At most `_THREADS` checks run concurrently, in threads.
    A correct password is cached for a minute as a keyed hash, so that clients that connect often
    cause little load.

    in_file: returns the current users in the file. in_metadata: returns the current users in the
    metadata. secret: returns the secret that generates salts for unknown users; brokers with the
    same secret generate the same salts.
    """

    def __init__(
        self,
        in_file: Callable[[], FileUsers],
        in_metadata: Callable[[], ScramImage],
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
        return self._in_metadata().get(user, mechanism)

    def pretend(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """See `broker.security.scram.Pretend`."""
        counts = {
            shape: count
            for shape, count in self._in_metadata().shapes.items()
            if shape.mechanism == mechanism
        }
        return self._pretended(mechanism, user, counts)[1]

    def _pretended(
        self, mechanism: ScramMechanism, user: str, counts: dict[CredentialShape, int]
    ) -> tuple[ScramMechanism, ScramCredential]:
        """Return a credential that looks like those in the file and these shapes, with its
        mechanism.
        """
        in_file = _file_shape(mechanism)
        counts[in_file] = counts.get(in_file, 0) + max(1, len(self._in_file()) // _MECHANISM_COUNT)
        secret = self._secret()
        shape = chosen(_seed_of(secret, mechanism, user), counts)
        mechanism = ScramMechanism(shape.mechanism)
        seed = _seed_of(secret, mechanism, user)
        key = hashlib.new(mechanism.hash_name, seed).digest()
        return mechanism, ScramCredential(_salt_of(seed, shape), key, key, shape.iterations)

    async def check_password(self, user: str, password: str) -> None:
        """Check a password. Raises AuthenticationFailed."""
        wrong = AuthenticationFailed("the user or the password is wrong", told=WRONG)
        credential = self._strongest(user)
        mechanism, known = credential or self._pretended(
            max(ScramMechanism), user, dict(self._in_metadata().strongest_shapes)
        )
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

    def _strongest(self, user: str) -> tuple[ScramMechanism, ScramCredential] | None:
        for mechanism in sorted(ScramMechanism, reverse=True):
            credential = self.find(mechanism, user)
            if credential is not None:
                return mechanism, credential
        return None

    def _remembered_key(self, user: str, password: str, credential: ScramCredential) -> bytes:
        parts = (user.encode(), password.encode(), credential.salt, credential.stored_key)
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, text, "sha256")
