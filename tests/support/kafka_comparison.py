"""Send the same requests to Kafka and to a broker of Penstock, and compare the responses."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol, TypeVar

Step = tuple[str, Any]


class Talk(Protocol):
    """One or more connections."""

    def close(self) -> None: ...


_Talk = TypeVar("_Talk", bound=Talk)


def hold(
    begin: Callable[[str], _Talk], address: str, scenario: Callable[[_Talk], Iterator[Step]]
) -> list[Step]:
    """Run a scenario; return the broker's responses without throttle times."""
    with closing(begin(address)) as talk:
        return [
            (label, response | {"throttle_time_ms": 0} if isinstance(response, dict) else response)
            for label, response in scenario(talk)
        ]


async def compare(
    begin: Callable[[str], _Talk],
    scenario: Callable[[_Talk], Iterator[Step]],
    addresses: tuple[str, str],
) -> None:
    """Assert that two brokers respond in the same way. addresses: the addresses of Kafka and
    Penstock.
    """
    expected, found = [
        await asyncio.to_thread(hold, begin, address, scenario) for address in addresses
    ]
    assert len(found) == len(expected)
    for response, wanted in zip(found, expected, strict=True):
        assert response == wanted, f"of Kafka: {wanted}\nof Penstock: {response}"
