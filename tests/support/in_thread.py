"""Run tests with blocking clients."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

_P = ParamSpec("_P")


def in_thread(test: Callable[_P, None]) -> Callable[_P, Coroutine[Any, Any, None]]:
    """Run the test in a thread, because the fixtures of its cluster use the event loop."""

    @wraps(test)
    async def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        await asyncio.to_thread(test, *args, **kwargs)

    return run
