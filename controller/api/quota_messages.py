"""Messages that change quotas of clients and addresses.

A request contains at most `ALTERATIONS_MAX` entities and `CHANGES_MAX` quotas; larger ones are
rejected with INVALID_REQUEST.
"""

from penstock.controller.api.messages import ForwardedMessage, Message, Status
from penstock.controller.metadata.records import QuotaTarget

ALTERATIONS_MAX = 1_000
CHANGES_MAX = 10_000


class QuotaChange(Message, frozen=True, kw_only=True):
    """Set one quota, or remove it: value None."""

    key: str
    value: float | None


class QuotaAlteration(Message, frozen=True, kw_only=True):
    """Changes of the quotas of one entity: all of them are made or none."""

    entity: tuple[QuotaTarget, ...]
    """In the order of the types, without duplicates."""
    changes: list[QuotaChange]


class AlterQuotas(ForwardedMessage, frozen=True, kw_only=True):
    """Change quotas. -> QuotasAltered."""

    alterations: list[QuotaAlteration]
    validate_only: bool = False


class QuotaResult(Message, frozen=True, kw_only=True):
    entity: tuple[QuotaTarget, ...]
    status: Status = Status.OK
    detail: str = ""


class QuotasAltered(Message, frozen=True, kw_only=True):
    """One result for each entity, in the order of the request."""

    results: list[QuotaResult]
