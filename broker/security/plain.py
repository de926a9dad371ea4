"""PLAIN (RFC 4616): the client sends its user and password in one message. Pure.

An authorization id that differs from the user is rejected. Error messages are the same as in
Kafka's PlainSaslServer.
"""

from typing import Final

from penstock.broker.security.exchange import CheckPassword
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

_PARTS: Final = 3
WRONG: Final = "Authentication failed: Invalid username or password"


class PlainServer:
    def receive(self, token: bytes) -> CheckPassword:
        """See `broker.security.exchange.Exchange`."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed("the PLAIN message is not UTF-8") from None
        if len(parts) != _PARTS:
            raise AuthenticationFailed(f"the PLAIN message has {len(parts)} parts, not {_PARTS}")
        authorization_id, user, password = parts
        if not user:
            raise _failed("Authentication failed: username not specified")
        if not password:
            raise _failed("Authentication failed: password not specified")
        if authorization_id not in {"", user}:
            raise _failed(
                "Authentication failed: Client requested an authorization id that is different from"
                " username"
            )
        return CheckPassword(user, password)


def _failed(text: str) -> AuthenticationFailed:
    return AuthenticationFailed(text, told=text)
