"""Build pages in tasks that may outlive the request that started them; a later request from the
browser then fetches the page.

Limits: BUILDS_MAX concurrent builds, BUILDS_OF_SESSION_MAX per logged-in session. A build is
canceled after BUILD_S_MAX, and a page that is not fetched is dropped after UNFETCHED_S.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from penstock.deploy.console.tasks import take_exception
from penstock.deploy.errors import Busy

BUILDS_MAX: Final = 64
BUILDS_OF_SESSION_MAX: Final = 16
BUILD_S_MAX: Final = 60.0
UNFETCHED_S: Final = 10.0

_T = TypeVar("_T")
Key = tuple[str, str]
"""Token of the session, empty without login, and address of the page."""


@dataclass(frozen=True, slots=True)
class Build(Generic[_T]):
    """A page being built; began_at is its start by time.monotonic()."""

    task: asyncio.Task[_T]
    began_at: float

    def is_usable(self, changed_at: float, now: float) -> bool:
        """Return whether the page is still up to date: newer than the last change of the user and,
        if it is finished, than UNFETCHED_S.
        """
        is_old = self.task.done() and now - self.began_at > UNFETCHED_S
        return self.began_at >= changed_at and not is_old


class PageBuilds(Generic[_T]):
    """The builds of one console."""

    def __init__(self) -> None:
        self._builds: dict[Key, Build[_T]] = {}

    def __len__(self) -> int:
        return len(self._builds)

    def begin(
        self, key: Key, build: Callable[[], Awaitable[_T]], changed_at: float = float("-inf")
    ) -> Build[_T]:
        """Return the build in progress, or start one. changed_at: the time when the user last
        changed the cluster. Raises Busy.
        """
        loop, now = asyncio.get_running_loop(), time.monotonic()
        found = self._builds.get(key)
        if found is not None:
            if found.task.get_loop() is loop and found.is_usable(changed_at, now):
                return found
            self._end(key)
        self._check_room(key[0])
        task = loop.create_task(_bounded(build))
        begun = self._builds[key] = Build(task, now)
        task.add_done_callback(take_exception)
        task.add_done_callback(lambda _: self._finished(key, begun))
        return begun

    def fetched(self, key: Key, build: Build[_T]) -> None:
        """Drop a finished build, unless a newer one has replaced it."""
        if self._builds.get(key) is build:
            del self._builds[key]

    def drop(self, token: str) -> None:
        """Cancel all builds of a session."""
        for key in [key for key in self._builds if key[0] == token]:
            self._end(key)

    async def close(self) -> None:
        """Cancel all builds and wait until they have ended."""
        tasks = [build.task for build in self._builds.values()]
        for key in list(self._builds):
            self._end(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_room(self, token: str) -> None:
        if len(self._builds) < BUILDS_MAX and (
            not token or sum(key[0] == token for key in self._builds) < BUILDS_OF_SESSION_MAX
        ):
            return
        for key, build in list(self._builds.items()):
            if build.task.done():
                del self._builds[key]  # finished but not fetched yet
                return
        raise Busy("the console already builds too many pages; try again in a moment")

    def _finished(self, key: Key, build: Build[_T]) -> None:
        asyncio.get_running_loop().call_later(UNFETCHED_S, self.fetched, key, build)

    def _end(self, key: Key) -> None:
        build = self._builds.pop(key)
        if not build.task.get_loop().is_closed():
            build.task.cancel()


async def _bounded(build: Callable[[], Awaitable[_T]]) -> _T:
    async with asyncio.timeout(BUILD_S_MAX):
        return await build()
