"""Steps of a SASL exchange."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client must respond to this challenge."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The client is authenticated as this user. expires_ms: wall clock time at which the credential
    expires, or None. by_token: whether the client has used a delegation token.
    """

    user: str
    data: bytes = b""
    expires_ms: int | None = None
    by_token: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class CheckPassword:
    """The caller must check a password, which takes some time."""

    user: str
    password: str


@dataclass(frozen=True, slots=True, repr=False)
class CheckToken:
    """The caller must verify a bearer token, which may require fetching keys."""

    token: str


Step: TypeAlias = Challenge | Done | CheckPassword | CheckToken


class Exchange(Protocol):
    """The server side of one authentication with one mechanism. It receives the client's tokens in
    order, and no more after it has returned `Done` or raised AuthenticationFailed.
    """

    def receive(self, token: bytes) -> Step:
        """Process the client's next token. Raises AuthenticationFailed."""
        ...
