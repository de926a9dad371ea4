"""Handle asyncio tasks whose result may never be retrieved."""

import asyncio
from typing import Any


def take_exception(task: "asyncio.Future[Any]") -> None:
    """Mark the exception of a task as retrieved, because asyncio would otherwise log it."""
    if not task.cancelled():
        task.exception()
