"""The client side of SCRAM-SHA-256 and SCRAM-SHA-512, and the syntax of its messages.

Invariant: pure; nonces are parameters. Channel binding is not supported. Source: RFC 5802, RFC
7677; Kafka's ScramSaslClient.
"""

import base64
import binascii
import hmac
import re
from typing import Final

from penstock.base.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    client_key,
    credential_of,
    salted_password,
    sign,
    xor,
)
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

TOKEN_EXTENSION: Final = "tokenauth"  # noqa: S105 - a name
"""With `tokenauth=true`, the name is the id of a delegation token (KIP-48)."""
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<iterations>[0-9]{1,9})"
    r"(?:,[A-Za-z]+=[^,]*)*"
)
_ESCAPES: Final = re.compile("=2C|=3D|=")
_CLIENT_ITERATIONS_MAX: Final = 10 * ITERATIONS_MAX
"""Limits the computation that a server can demand from a client."""


class ScramClient:
    """The client side of one authentication. nonce: random, used once. by_token: whether user and
    password are those of a delegation token.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        *,
        nonce: str,
        by_token: bool = False,
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escaped(user)},r={nonce}"
        if by_token:
            self._bare += f",{TOKEN_EXTENSION}=true"
        self._verifier = b""

    def first(self) -> bytes:
        return b"n,," + self._bare.encode()

    def final(self, challenge: bytes) -> bytes:
        """Respond to the server's first message. Raises AuthenticationFailed."""
        text = message_text(challenge)
        found = _SERVER_FIRST.fullmatch(text)
        if found is None or not found["nonce"].startswith(self._nonce):
            raise AuthenticationFailed("the server's first SCRAM message is malformed")
        iterations, salt = int(found["iterations"]), message_value(found["salt"])
        if not ITERATIONS_MIN <= iterations <= _CLIENT_ITERATIONS_MAX:
            raise AuthenticationFailed(f"the server requests {iterations} SCRAM iterations")
        bare = f"c=biws,r={found['nonce']}"
        signed = f"{self._bare},{text},{bare}".encode()
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        credential = credential_of(self._mechanism, salted, salt, iterations)
        proof = xor(
            client_key(self._mechanism, salted),
            sign(self._mechanism, credential.stored_key, signed),
        )
        self._verifier = base64.b64encode(sign(self._mechanism, credential.server_key, signed))
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, response: bytes) -> None:
        """Verify that the server has the user's credential. Raises AuthenticationFailed."""
        if not self._verifier or not hmac.compare_digest(response, b"v=" + self._verifier):
            raise AuthenticationFailed(
                "the server cannot prove that it has the password: do not trust it"
            )


def escaped(name: str) -> str:
    """Escape a user name for SCRAM messages."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    """Unescape a user name from a SCRAM message. Raises AuthenticationFailed."""

    def character(found: re.Match[str]) -> str:
        if found[0] == "=":
            raise AuthenticationFailed("the user name of the SCRAM message is malformed")
        return "," if found[0] == "=2C" else "="

    return _ESCAPES.sub(character, name)


def message_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a SCRAM message is not UTF-8") from None


def message_value(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("a value in a SCRAM message is not base64") from None
