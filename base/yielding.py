"""Run long work in steps, so that the event loop can run other tasks in between.

The work is a generator that yields wherever it may be interrupted and returns the result.
"""

import asyncio
from collections.abc import Generator
from typing import TypeVar, cast

_Result = TypeVar("_Result")


async def in_turns(steps: Generator[None, None, _Result]) -> _Result:
    """Run the steps, yield to the event loop after each, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("_Result", end.value)
        await asyncio.sleep(0)


def at_once(steps: Generator[None, None, _Result]) -> _Result:
    """Run all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("_Result", end.value)
