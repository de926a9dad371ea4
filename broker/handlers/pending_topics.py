"""Remember which internal topics of streams groups a broker is creating, and what has failed.

Invariants: a topic is being created once at a time. A topic whose creation failed is not tried
again as long as that is told.
Limits: FAILURES_MAX failures are told; the oldest ones go first.
Source: Kafka `AutoTopicCreationManager`.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

FAILURES_MAX: Final = 1_000


class PendingTopics:
    """Those of one broker."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._failures: dict[str, tuple[str, float]] = {}
        """Why a topic could not be created, and until when that is told, by name."""
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def claim(self, names: Iterable[str]) -> set[str]:
        """Return those that are to be created now. The caller releases them."""
        wanted = set(names)
        wanted -= self._busy | self.failures(wanted).keys()
        self._busy |= wanted
        return wanted

    def release(self, names: Iterable[str]) -> None:
        self._busy.difference_update(names)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work in a task that goes on when the client is gone."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("streams_topics_failed", error=str(error), kind=type(error).__name__)

    def failed(self, name: str, reason: str, told_s: float) -> None:
        """Note why a topic could not be created. told_s: how long that is told."""
        self._failures.pop(name, None)
        self._failures[name] = (reason, asyncio.get_running_loop().time() + told_s)
        if len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    def failures(self, names: Iterable[str]) -> dict[str, str]:
        """Return why topics could not be created, by name."""
        now = asyncio.get_running_loop().time()
        found = {name: self._failures[name] for name in names if name in self._failures}
        return {name: reason for name, (reason, until) in found.items() if until > now}
