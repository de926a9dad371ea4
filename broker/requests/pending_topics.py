"""Track which internal topics of streams groups this broker is creating, and which could not be
created, like Kafka's `AutoTopicCreationManager`.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

CREATED_MAX: Final = 10_000
"""Maximum number of topics being created: the maximum number in one topology. The next heartbeat
requests the remaining ones again.
"""
FAILURES_MAX: Final = 1_000


class PendingTopics:
    """The pending topics of one broker. A topic is never created twice concurrently. After a
    failure, it is created again only once the failure is no longer reported to members. At most
    FAILURES_MAX failures are kept; the oldest ones are dropped first.
    """

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._failures: dict[str, tuple[str, float]] = {}
        """By topic name, the reason for the failure, and until when it is reported."""
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def claim(self, names: Iterable[str]) -> list[str]:
        """Return the topics that the caller must create now, in order. The caller must release
        them.
        """
        wanted = set(names)
        wanted -= self._busy | self.failures(wanted).keys()
        claimed = sorted(wanted)[: CREATED_MAX - len(self._busy)]
        self._busy.update(claimed)
        return claimed

    def release(self, names: Iterable[str]) -> None:
        self._busy.difference_update(names)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work in a task, which continues after the client has disconnected."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("streams_topics_failed", error=str(error), kind=type(error).__name__)

    def failed(self, name: str, reason: str, kept_s: float) -> None:
        """Store the reason for a failure, which is reported for `kept_s` seconds."""
        self._failures.pop(name, None)
        self._failures[name] = (reason, asyncio.get_running_loop().time() + kept_s)
        if len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    def failures(self, names: Iterable[str]) -> dict[str, str]:
        """Return the failure reasons of these topics, by name."""
        now = asyncio.get_running_loop().time()
        found = {name: self._failures[name] for name in names if name in self._failures}
        return {name: reason for name, (reason, until) in found.items() if until > now}
