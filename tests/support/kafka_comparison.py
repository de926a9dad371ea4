"""Hold the same conversation with Kafka and with a broker of Penstock, and compare the answers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol, TypeVar

Step = tuple[str, Any]


class Talk(Protocol):
    """A connection, or several."""

    def close(self) -> None: ...


_Talk = TypeVar("_Talk", bound=Talk)


def hold(
    begin: Callable[[str], _Talk], address: str, scenario: Callable[[_Talk], Iterator[Step]]
) -> list[Step]:
    """Return the answers of a broker to a scenario, without throttle times."""
    with closing(begin(address)) as talk:
        return [
            (label, answer | {"throttle_time_ms": 0} if isinstance(answer, dict) else answer)
            for label, answer in scenario(talk)
        ]


async def compare(
    begin: Callable[[str], _Talk],
    scenario: Callable[[_Talk], Iterator[Step]],
    addresses: tuple[str, str],
) -> None:
    """Assert that two brokers answer the same. addresses: of Kafka and of Penstock."""
    expected, found = [
        await asyncio.to_thread(hold, begin, address, scenario) for address in addresses
    ]
    assert len(found) == len(expected)
    for answer, wanted in zip(found, expected, strict=True):
        assert answer == wanted, f"of Kafka: {wanted}\nof Penstock: {answer}"
