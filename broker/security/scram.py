"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), server side. Pure; nonces are parameters.

With the extension `tokenauth=true`, the name is the id of a delegation token, and the client is
authenticated as the token's owner (KIP-48). Channel binding is not supported: only `n` and `y` are
accepted.
"""

import base64
import hmac
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.base.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    digest,
    sign,
    xor,
)
from penstock.broker.security.exchange import Challenge, Done
from penstock.protocol.sasl.mechanisms import AuthenticationFailed
from penstock.protocol.sasl.scram import TOKEN_EXTENSION, message_text, message_value, unescaped

_CLIENT_FIRST: Final = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authzid>[^,]+))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z][^,]*)*))"
)
"""The pattern is unambiguous. If an extension could match in two ways, a token of 100 bytes would
take minutes.
"""
_CLIENT_FINAL: Final = re.compile(
    r"(?P<bare>c=(?P<channel>[A-Za-z0-9+/]+={0,2}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^,]*)*),p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)

Find = Callable[[ScramMechanism, str], ScramCredential | None]
"""Looks up the credential of a user."""

Pretend = Callable[[ScramMechanism, str], ScramCredential]
"""Generates a credential for an unknown user. The same name always results in the same
credential.
"""


class TokenLogin(NamedTuple):
    """The credential of a delegation token, the name of the token's owner, and the wall clock time
    at which the token expires.
    """

    credential: ScramCredential
    owner: str
    expires_ms: int


FindToken = Callable[[ScramMechanism, str], TokenLogin | None]
"""Looks up a delegation token, by its id."""


def _no_token(_mechanism: ScramMechanism, _token_id: str) -> TokenLogin | None:
    return None


class ScramServer:
    """The server side of one authentication. The first response for an unknown user looks like the
    one for a known user, with a stable salt, and the client is rejected only after it has sent its
    proof.

    nonce: a random value that is used only once.
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
        text = message_text(token)
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
        if extensions.get(TOKEN_EXTENSION, "").lower() == "true":
            self._token = self._find_token(self._mechanism, self._user)
            credential = self._token.credential if self._token is not None else None
            pretended = self._pretend_token(self._mechanism, self._user)
        else:
            credential = self._find(self._mechanism, self._user)
            # Do this for known users as well; otherwise, their responses would be sent 30 us
            # earlier.
            pretended = self._pretend(self._mechanism, self._user)
        self._is_known = credential is not None and credential.iterations >= ITERATIONS_MIN
        if credential is None or not self._is_known:
            credential = pretended
        self._credential = credential
        self._header = found["header"].encode()
        self._nonce = found["nonce"] + self._own_nonce
        salt = base64.b64encode(credential.salt).decode()
        response = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._first_messages = f"{found['bare']},{response}".encode()
        return Challenge(response.encode())

    def _final(self, text: str) -> Done:
        found = _CLIENT_FINAL.fullmatch(text)
        credential = self._credential
        if found is None or credential is None:
            raise AuthenticationFailed("the final SCRAM message is malformed")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the nonce of the final SCRAM message differs")
        if message_value(found["channel"]) != self._header:
            raise AuthenticationFailed("the channel binding of the final SCRAM message differs")
        signed = self._first_messages + b"," + found["bare"].encode()
        proof = message_value(found["proof"])
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
