"""Derive what a server keeps of a SCRAM user: a salt, two keys and a number of iterations.

Invariant: pure. None of it is the password, but `stored_key` with the salt lets its holder try
passwords, and `server_key` lets them pose as a server: keep both secret.
Source: RFC 5802, RFC 7677; Kafka's ScramFormatter and ScramMechanism.
"""

import hashlib
import hmac
import re
from enum import IntEnum
from typing import Final, NamedTuple

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""As in Kafka: a client cannot make others compute for longer."""


class ScramMechanism(IntEnum):
    """A mechanism, by its number in Kafka's protocol."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()


SCRAM_BY_NAME: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


class CredentialShape(NamedTuple):
    """What everyone can see of a credential who begins a login, apart from the bits of the salt.

    salt_bytes: length of the salt; 0: it is a text, as Kafka's tools make it.
    """

    mechanism: int
    salt_bytes: int
    iterations: int


KAFKA_SALT_BITS: Final = 130
_KAFKA_SALT: Final = re.compile(rb"[1-9a-z][0-9a-z]{0,25}")


class ScramCredential(NamedTuple):
    """What verifies one user under one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Hide the keys, so that no log shows them."""
        return "ScramCredential([hidden])"


def shape_of(mechanism: int, credential: ScramCredential) -> CredentialShape:
    salt = credential.salt
    is_kafka = _KAFKA_SALT.fullmatch(salt) and int(salt, 36) < 1 << KAFKA_SALT_BITS
    return CredentialShape(mechanism, 0 if is_kafka else len(salt), credential.iterations)


def digest(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def sign(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    """Return the HMAC of `data`."""
    return hmac.digest(key, data, mechanism.hash_name)


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Return SaltedPassword. Takes milliseconds of CPU: about 1 us for each iteration."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return sign(mechanism, salted, b"Client Key")


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a salted password."""
    return ScramCredential(
        salt,
        digest(mechanism, client_key(mechanism, salted)),
        sign(mechanism, salted, b"Server Key"),
        iterations,
    )


def is_password(mechanism: ScramMechanism, password: str, credential: ScramCredential) -> bool:
    """Return whether this is the password of a credential. As slow as `salted_password`."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    found = digest(mechanism, client_key(mechanism, salted))
    return hmac.compare_digest(found, credential.stored_key)
