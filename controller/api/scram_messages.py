"""Messages that change SCRAM credentials of users.

A request contains at most `ALTERATIONS_MAX` credentials; larger ones are rejected with
INVALID_REQUEST.
"""

from penstock.base.scram import ScramCredential
from penstock.controller.api.messages import ForwardedMessage, Message, Status

ALTERATIONS_MAX = 1_000


class ScramDeletion(Message, frozen=True, kw_only=True):
    user: str
    mechanism: int


class ScramUpsertion(Message, frozen=True, kw_only=True):
    """The keys are derived from the salted password, which does not leave the broker."""

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
        """Hide the keys, so that no log shows them."""
        return f"ScramUpsertion(user={self.user!r}, mechanism={self.mechanism}, [hidden])"


class AlterScramCredentials(ForwardedMessage, frozen=True, kw_only=True):
    """Set and delete credentials of users; each user may occur once. -> ScramAltered."""

    deletions: list[ScramDeletion] = []  # noqa: RUF012  # msgspec copies it
    upsertions: list[ScramUpsertion] = []  # noqa: RUF012  # msgspec copies it


class ScramResult(Message, frozen=True, kw_only=True):
    user: str
    status: Status = Status.OK
    detail: str = ""


class ScramAltered(Message, frozen=True, kw_only=True):
    """One result per user, successful ones first."""

    results: list[ScramResult]
