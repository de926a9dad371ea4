"""A request with as many elements as a broker accepts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from penstock.protocol.apis import ApiSpec
from penstock.protocol.request_limits import elements_max, things_max
from tests.support.requests import make_request

ID: Final = UUID(int=7)
UNKNOWN_NODES: Final = [97, 98, 99]
_OUTER_ELEMENTS: Final = 2
"""The maximum number of other elements, such as one group or topic that contains all partitions."""


@dataclass(frozen=True, slots=True)
class LongRequest:
    """fields: those of the request with this many names. elements: elements in the request per
    name.
    """

    api: ApiSpec
    version: int
    fields: Callable[[int], Mapping[str, Any]]
    elements: int = 1

    def make(self, count: int) -> Any:
        return make_request(self.api, **self.fields(count))

    @property
    def count(self) -> int:
        """The largest number of names within the limits of the API."""
        count = (elements_max(self.api.key) - _OUTER_ELEMENTS) // self.elements
        things = things_max(self.api.key)
        if things is not None and things.count(self.make(count)) > things.max:
            return things.max
        return count


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def ids(count: int) -> list[UUID]:
    return [UUID(int=number + 1) for number in range(count)]
