"""What every manager function answers: the records that make it so, or why not.

Invariant: a refused request has no records. OK without records: it was so already (a repeat after a
lost reply), or it only reads. The records of one result are one transaction: all are applied or
none.
"""

from dataclasses import dataclass, field
from typing import Generic, Never, TypeVar

from controller.api.messages import Status
from controller.metadata.records import Record

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Result(Generic[T_co]):
    """value: the body of the reply; None for requests without one and for refusals (except
    KEY_EXISTS, which tells the current value).
    """

    records: list[Record] = field(default_factory=list[Record])
    status: Status = Status.OK
    detail: str = ""
    value: T_co | None = None


class Refused(Exception):
    """Raised inside a manager to leave with a refusal of the whole request."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(f"{status.name}: {detail}")
        self.status = status
        self.detail = detail

    def result(self) -> Result[Never]:
        return Result(status=self.status, detail=self.detail)
