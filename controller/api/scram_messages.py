"""Messages that change the SCRAM credentials of users.

A request contains at most `ALTERATIONS_MAX` credentials. Larger requests are rejected with
INVALID_REQUEST.
"""

from penstock.base.scram import ScramCredential
from penstock.controller.api.messages import ForwardedMessage, Message, Status

ALTERATIONS_MAX = 1_000


class ScramDeletion(Message, frozen=True, kw_only=True):
    user: str
    mechanism: int


class ScramUpsertion(Message, frozen=True, kw_only=True):
    """Sets a credential. The broker derives the keys from the salted password and does not send the
    password.
    """

    user: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @property
    def credential(self) -> ScramCredential:
        return ScramCredential(self.salt, self.stored_key, self.server_key, self.iterations)

    def __repr__(self) -> str:
        """Omit the keys, so that they are never logged."""
        return f"ScramUpsertion(user={self.user!r}, mechanism={self.mechanism}, [hidden])"


class AlterScramCredentials(ForwardedMessage, frozen=True, kw_only=True):
    """Set and delete credentials. Each user may occur only once. Reply: ScramAltered."""

    deletions: list[ScramDeletion] = []  # noqa: RUF012  # msgspec copies it
    upsertions: list[ScramUpsertion] = []  # noqa: RUF012  # msgspec copies it


class ScramResult(Message, frozen=True, kw_only=True):
    user: str
    status: Status = Status.OK
    detail: str = ""


class ScramAltered(Message, frozen=True, kw_only=True):
    """One result per user. Users without an error are listed first."""

    results: list[ScramResult]
