"""Request the rights of users from the brokers, with at most one request per session at a time.

Invariant: if the brokers do not respond, the user's rights are unknown, and the user's requests
fail with NoResponse instead of being allowed or denied. A user that the brokers reject is logged
out.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakKeyDictionary

from penstock.base.errors import ExpectedError
from penstock.deploy.console.rights import Rights
from penstock.deploy.console.sessions import Session, Sessions
from penstock.deploy.console.tasks import take_exception
from penstock.protocol.client.errors import AuthenticationRefused, NoResponse

RETRY_S: Final = 1.0
"""Pause after a failed check. Requests in between fail with the same error."""


class SessionOver(ExpectedError):
    """The brokers no longer accept the user of the session."""


class RightsChecks:
    """send_request: requests the rights of a session's user, within a bounded time. changed: called
    with the token of a session that has ended or whose rights have changed.
    """

    def __init__(
        self,
        sessions: Sessions,
        send_request: Callable[[Session], Awaitable[Rights]],
        changed: Callable[[str], None],
    ) -> None:
        self._sessions = sessions
        self._send_request = send_request
        self._changed = changed
        self._running: WeakKeyDictionary[Session, asyncio.Task[None]] = WeakKeyDictionary()

    def begin(self, session: Session, *, is_use: bool = True) -> "asyncio.Task[None] | None":
        """Return the check that a request of this session must wait for, or None if its rights are
        recent enough. Does not wait.
        """
        if not session.rights.is_bounded:
            return None
        running = self._running.get(session)
        loop = asyncio.get_running_loop()
        if running is not None and running.get_loop() is loop:
            return running
        if not self._sessions.needs_rights(session, is_use=is_use):
            return None
        task = loop.create_task(self._check(session))
        task.add_done_callback(take_exception)
        self._running[session] = task
        task.add_done_callback(lambda _: self._ended(session, task))
        return task

    async def wait(self, session: Session, *, is_use: bool = True) -> None:
        """Wait until the rights are recent enough. Raises NoResponse if they stay unknown,
        SessionOver if the brokers reject the user.
        """
        task = self.begin(session, is_use=is_use)
        if task is not None:
            await asyncio.shield(task)

    def _ended(self, session: Session, task: "asyncio.Task[None]") -> None:
        """Let the next request start another check, but only after a pause if this one has
        failed.
        """
        if task.cancelled() or task.exception() is None:
            self._running.pop(session, None)
        else:
            asyncio.get_running_loop().call_later(RETRY_S, self._running.pop, session, None)

    async def _check(self, session: Session) -> None:
        try:
            found = await self._send_request(session)
        except AuthenticationRefused as error:
            self._sessions.close(session)
            self._changed(session.token)
            raise SessionOver(str(error)) from None
        except (ExpectedError, TimeoutError) as error:
            if not self._sessions.needs_rights(session, is_use=False):
                return  # The last known rights are still recent enough.
            raise NoResponse(f"cannot request your rights from the brokers: {error}") from None
        has_changed = found != session.rights
        self._sessions.checked(session, found)
        if has_changed:
            self._changed(session.token)
