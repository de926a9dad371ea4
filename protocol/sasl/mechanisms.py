"""SASL mechanisms, and the client messages of PLAIN and OAUTHBEARER."""

from typing import Final

from penstock.base.scram import SCRAM_BY_NAME

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER)


class AuthenticationFailed(Exception):
    """Raised when authentication fails. told: the message sent to the client; None for a general
    message that reveals nothing about users. The exception message is meant for the log.
    """

    def __init__(self, message: str, *, told: str | None = None) -> None:
        super().__init__(message)
        self.told = told


def plain_message(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def bearer_message(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()
