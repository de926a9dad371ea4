"""Small requests never pause; long ones yield to the event loop between slices."""

import asyncio
from typing import Any

import pytest

from penstock.broker.requests.yielding import STARTED_COUNT, gathered, smallest


@pytest.mark.parametrize(
    ("count", "pauses"), [(1, 0), (STARTED_COUNT - 1, 0), (3 * STARTED_COUNT - 1, 2)]
)
async def test_only_long_loops_pause(
    count: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    call_later, timers = loop.call_later, list[float]()

    def noted(delay_s: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(delay_s)
        return call_later(delay_s, *arguments, **options)

    async def step(number: int) -> int:
        return number

    monkeypatch.setattr(loop, "call_later", noted)
    assert await gathered(step(number) for number in range(count)) == list(range(count))
    assert len(timers) == pauses


@pytest.mark.parametrize("count", [1, 2, 3, 100])
async def test_the_smallest_strings_are_returned_in_order_without_duplicates(count: int) -> None:
    texts = ["d", "b", "b", "a", "e", "c", "a"]
    assert await smallest(iter(texts), count) == sorted(set(texts))[:count]
