"""What one step of a SASL exchange can yield, and why an exchange fails.

Invariant: values. An exchange is one authentication by one mechanism: it receives the client's
tokens in order, and after `Done` or AuthenticationFailed none.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


class AuthenticationFailed(Exception):
    """Raised when a client does not authenticate. told: the text for the client; None for the
    general one, which says nothing about users. The message is for the log.
    """

    def __init__(self, message: str, *, told: str | None = None) -> None:
        super().__init__(message)
        self.told = told


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The client is this user. expires_ms: wall clock time at which its credential expires; None
    for never. by_token: it has shown a delegation token.
    """

    user: str
    data: bytes = b""
    expires_ms: int | None = None
    by_token: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class CheckPassword:
    """The caller has to check a password, which takes time."""

    user: str
    password: str


@dataclass(frozen=True, slots=True, repr=False)
class CheckToken:
    """The caller has to check a bearer token, for which it may have to fetch keys."""

    token: str


Step: TypeAlias = Challenge | Done | CheckPassword | CheckToken


class Exchange(Protocol):
    """The server's side of one mechanism."""

    def receive(self, token: bytes) -> Step:
        """Take the client's next token. Raises AuthenticationFailed."""
        ...
