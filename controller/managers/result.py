"""The result of a manager: the records of one transaction, or the reason for a rejection.

OK without records means that nothing had to change (for example in a retry after a lost reply), or
that the request only reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Never, TypeAlias, TypeVar

from penstock.controller.api.messages import Status
from penstock.controller.metadata.records import Record

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Result(Generic[T_co]):
    """The result of a manager. value: body of the reply. None for requests without a body and for
    rejections, except for KEY_EXISTS, which returns the current value.
    """

    records: list[Record] = field(default_factory=list[Record])
    status: Status = Status.OK
    detail: str = ""
    value: T_co | None = None


CountPartitions: TypeAlias = Callable[[int], None]
"""Callback for the number of partitions that an item of a request creates or deletes, after all
other checks. Raises Refused if the client exceeds its quota.
"""


def count_nothing(partition_count: int) -> None:
    """The `CountPartitions` of clients without a quota."""
    del partition_count


class Refused(Exception):
    """Raised in a manager to reject the whole request, or one of its items."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(f"{status.name}: {detail}")
        self.status = status
        self.detail = detail

    def result(self) -> Result[Never]:
        return Result(status=self.status, detail=self.detail)
