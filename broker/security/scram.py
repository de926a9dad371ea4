"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both sides. Pure; nonces are parameters.

With the extension `tokenauth=true`, the name is the id of a delegation token, whose owner the
client becomes (KIP-48). Channel binding is not supported: the client may send `n` or `y`.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.base.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    client_key,
    credential_of,
    digest,
    salted_password,
    sign,
    xor,
)
from penstock.broker.security.exchange import AuthenticationFailed, Challenge, Done

_CLIENT_FIRST: Final = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authzid>[^,]+))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z][^,]*)*))"
)
"""Unambiguous: if an extension could be matched in two ways, a token of 100 bytes would take
minutes.
"""
_CLIENT_FINAL: Final = re.compile(
    r"(?P<bare>c=(?P<channel>[A-Za-z0-9+/]+={0,2}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^,]*)*),p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<iterations>[0-9]{1,9})"
    r"(?:,[A-Za-z]+=[^,]*)*"
)
_ESCAPES: Final = re.compile("=2C|=3D|=")
_CLIENT_ITERATIONS_MAX: Final = 10 * ITERATIONS_MAX
"""Limits the computation that a server can demand from a client."""

_TOKEN_EXTENSION: Final = "tokenauth"  # noqa: S105 - a name

Find = Callable[[ScramMechanism, str], ScramCredential | None]
"""Looks up the credential of a user."""

Pretend = Callable[[ScramMechanism, str], ScramCredential]
"""Generates the credential of an unknown user, always the same for one name."""


class TokenLogin(NamedTuple):
    """The verifier of a delegation token, the name of its owner, and its wall clock expiry."""

    credential: ScramCredential
    owner: str
    expires_ms: int


FindToken = Callable[[ScramMechanism, str], TokenLogin | None]
"""Looks up a delegation token by its id."""


def _no_token(_mechanism: ScramMechanism, _token_id: str) -> TokenLogin | None:
    return None


class ScramServer:
    """The server side of one authentication. The first response for an unknown user is like that
    for a known one, with a stable salt; only the proof is rejected.

    nonce: random, used once.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Find,
        pretend: Pretend,
        *,
        nonce: str,
        find_token: FindToken = _no_token,
        pretend_token: Pretend | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._find_token = find_token
        self._token: TokenLogin | None = None
        self._pretend = pretend
        self._pretend_token = pretend_token or pretend
        self._own_nonce = nonce
        self._user = ""
        self._header = b""
        self._first_messages = b""
        self._nonce = ""
        self._credential: ScramCredential | None = None
        self._is_known = False

    def receive(self, token: bytes) -> Challenge | Done:
        """See `broker.security.exchange.Exchange`."""
        text = _text(token)
        return self._first(text) if self._credential is None else self._final(text)

    def _first(self, text: str) -> Challenge:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed("the first SCRAM message is malformed")
        extensions: dict[str, str] = {}
        for part in found["extensions"].split(","):
            name, _, value = part.partition("=")
            extensions[name] = value
        if "m" in extensions:
            raise AuthenticationFailed("the client requires an unsupported SCRAM extension")
        self._user = unescaped(found["name"])
        if found["authzid"] is not None and unescaped(found["authzid"]) != self._user:
            raise AuthenticationFailed(
                "the authorization id differs from the user",
                told="Authentication failed: Client requested an authorization id that is"
                " different from username",
            )
        if extensions.get(_TOKEN_EXTENSION, "").lower() == "true":
            self._token = self._find_token(self._mechanism, self._user)
            credential = self._token.credential if self._token is not None else None
            pretended = self._pretend_token(self._mechanism, self._user)
        else:
            credential = self._find(self._mechanism, self._user)
            # Also for known users, whose response would otherwise be sent 30 us earlier.
            pretended = self._pretend(self._mechanism, self._user)
        self._is_known = credential is not None and credential.iterations >= ITERATIONS_MIN
        if credential is None or not self._is_known:
            credential = pretended
        self._credential = credential
        self._header = found["header"].encode()
        self._nonce = found["nonce"] + self._own_nonce
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._first_messages = f"{found['bare']},{answer}".encode()
        return Challenge(answer.encode())

    def _final(self, text: str) -> Done:
        found = _CLIENT_FINAL.fullmatch(text)
        credential = self._credential
        if found is None or credential is None:
            raise AuthenticationFailed("the final SCRAM message is malformed")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the nonce of the final SCRAM message differs")
        if _decoded(found["channel"]) != self._header:
            raise AuthenticationFailed("the channel binding of the final SCRAM message differs")
        signed = self._first_messages + b"," + found["bare"].encode()
        proof = _decoded(found["proof"])
        signature = sign(self._mechanism, credential.stored_key, signed)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the SCRAM proof has the wrong length")
        is_right = hmac.compare_digest(
            digest(self._mechanism, xor(signature, proof)), credential.stored_key
        )
        if not (is_right and self._is_known):
            raise AuthenticationFailed("the user or the password is wrong")
        verifier = base64.b64encode(sign(self._mechanism, credential.server_key, signed))
        if self._token is None:
            return Done(self._user, b"v=" + verifier)
        expires_ms = self._token.expires_ms
        return Done(self._token.owner, b"v=" + verifier, expires_ms, by_token=True)


class ScramClient:
    """The client side of one authentication. nonce: random, used once. by_token: user and password
    are those of a delegation token.
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
            self._bare += f",{_TOKEN_EXTENSION}=true"
        self._verifier = b""

    def first(self) -> bytes:
        return b"n,," + self._bare.encode()

    def final(self, challenge: bytes) -> bytes:
        """Respond to the server's first message. Raises AuthenticationFailed."""
        text = _text(challenge)
        found = _SERVER_FIRST.fullmatch(text)
        if found is None or not found["nonce"].startswith(self._nonce):
            raise AuthenticationFailed("the server's first SCRAM message is malformed")
        iterations, salt = int(found["iterations"]), _decoded(found["salt"])
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

    def check(self, answer: bytes) -> None:
        """Verify that the server has the user's credential. Raises AuthenticationFailed."""
        if not self._verifier or not hmac.compare_digest(answer, b"v=" + self._verifier):
            raise AuthenticationFailed("the server does not know the password: do not trust it")


def escaped(name: str) -> str:
    """Escape a user name for SCRAM messages."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    """Unescape a user name of a SCRAM message. Raises AuthenticationFailed."""

    def character(found: re.Match[str]) -> str:
        if found[0] == "=":
            raise AuthenticationFailed("the user name of the SCRAM message is malformed")
        return "," if found[0] == "=2C" else "="

    return _ESCAPES.sub(character, name)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a SCRAM message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("a value in a SCRAM message is not base64") from None
