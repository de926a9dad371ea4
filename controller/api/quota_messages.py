"""Messages for changing client and address quotas.

A request contains at most `ALTERATIONS_MAX` entities and `CHANGES_MAX` quotas. Larger requests are
rejected with INVALID_REQUEST.
"""

from penstock.controller.api.messages import ForwardedMessage, Message, Status
from penstock.controller.metadata.records import QuotaTarget

ALTERATIONS_MAX = 1_000
CHANGES_MAX = 10_000


class QuotaChange(Message, frozen=True, kw_only=True):
    """Sets one quota, or removes it if the value is None."""

    key: str
    value: float | None


class QuotaAlteration(Message, frozen=True, kw_only=True):
    """Changes to the quotas of one entity. Either all of them are made or none."""

    entity: tuple[QuotaTarget, ...]
    """The components of the entity, ordered by type, without duplicates."""
    changes: list[QuotaChange]


class AlterQuotas(ForwardedMessage, frozen=True, kw_only=True):
    """Change quotas. Reply: QuotasAltered."""

    alterations: list[QuotaAlteration]
    validate_only: bool = False


class QuotaResult(Message, frozen=True, kw_only=True):
    entity: tuple[QuotaTarget, ...]
    status: Status = Status.OK
    detail: str = ""


class QuotasAltered(Message, frozen=True, kw_only=True):
    """One result per entity, in the order of the request."""

    results: list[QuotaResult]
