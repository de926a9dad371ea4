"""OAUTHBEARER (RFC 7628): the client sends a token signed by an identity provider, as
`n,,^Aauth=Bearer TOKEN^A^A`. Pure.

A client whose token is rejected receives the reason as JSON, and responds with one byte, after
which authentication fails.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from penstock.broker.security.exchange import Challenge, CheckToken
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

MESSAGE_BYTES_MAX: Final = 1 << 15
"""Maximum size of a message including its token. The processing cost grows with the message size,
and is incurred before the client is authenticated. Tokens are designed for HTTP headers, which
servers limit to 8 or 16 KiB.
"""
_SEPARATOR: Final = "\x01"
_MESSAGE: Final = re.compile(
    r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e \t\r\n]*\x01)+)\x01"
)
_BEARER: Final = re.compile(r"bearer +(?P<token>[-_.~+/A-Za-z0-9]+=*)", re.IGNORECASE)


class OAuthBearerServer:
    def __init__(self) -> None:
        self._authorization_id = ""
        self._refusal = ""

    def receive(self, token: bytes) -> CheckToken:
        """See `broker.security.exchange.Exchange`."""
        if self._refusal:
            raise AuthenticationFailed("the token was rejected", told=self._refusal)
        if len(token) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed(
                f"the OAUTHBEARER message has {len(token)} bytes, but at most {MESSAGE_BYTES_MAX}"
                " are allowed"
            )
        found = _MESSAGE.fullmatch(token.decode("ascii", "replace"))
        if found is None:
            raise AuthenticationFailed("the OAUTHBEARER message is malformed")
        pairs: dict[str, str] = {}
        for pair in str(found["pairs"]).split(_SEPARATOR):
            name, _, value = pair.partition("=")
            pairs[name] = value
        bearer = _BEARER.fullmatch(pairs.get("auth", ""))
        if bearer is None:
            raise AuthenticationFailed("the OAUTHBEARER message contains no bearer token")
        self._authorization_id = found["authzid"] or ""
        return CheckToken(bearer["token"])

    def check_user(self, user: str) -> None:
        """Check that the authorization id, if any, matches the token's user. Raises
        AuthenticationFailed.
        """
        if self._authorization_id not in {"", user}:
            text = (
                "Authentication failed: Client requested an authorization id"
                f" ({self._authorization_id}) that is different from the token's principal name"
            )
            raise AuthenticationFailed("the authorization id differs from the user", told=text)

    def refuse(self, scopes: Sequence[str] = ()) -> Challenge:
        """Reject the token. The exchange fails after the client has responded. scopes: the required
        scopes, if the token lacks any of them.
        """
        refusal = (
            {"status": "insufficient_scope", "scope": " ".join(scopes)}
            if scopes
            else {"status": "invalid_token"}
        )
        self._refusal = json.dumps(refusal, separators=(",", ":"))
        return Challenge(self._refusal.encode())
