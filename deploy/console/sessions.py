"""Keep who has logged in, for a limited time, and slow down those who guess passwords.

Invariants: pure; clock and tokens are parameters. At most `SESSIONS_MAX` sessions: one more ends
the one that was idle for longest. Nothing is written to disk, so a restart ends all sessions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.console.rights import EVERYTHING, Rights

SESSIONS_MAX: Final = 200
SESSION_S_MAX: Final = 8 * 3_600.0
IDLE_S_MAX: Final = 1_800.0
FAILURES_MAX: Final = 10
"""Failed logins of one address within a minute; further ones are refused without asking a
broker.
"""
FAILURE_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000
RIGHTS_S: Final = 10.0
"""How long rights count before the brokers are asked again."""
SETTLE_S: Final = 2.0
"""How long after a change each page asks for rights: all brokers know of a new topic by then."""


@dataclass(slots=True, eq=False)
class Session:
    """What one user does. user: empty without login. csrf: the token of its forms. security: how
    its requests go to brokers.
    """

    token: str
    csrf: str
    user: str
    security: ClientSecurity
    rights: Rights = EVERYTHING
    rights_at: float = 0.0
    began_at: float = 0.0
    used_at: float = 0.0
    changed_at: float = float("-inf")
    """When the user last changed the cluster."""

    @property
    def has_old_rights(self) -> bool:
        """Return whether this use of the session has to ask for its rights."""
        return self.used_at - self.rights_at > RIGHTS_S or self.used_at - self.changed_at < SETTLE_S


class Sessions:
    """new_token: returns an unguessable text."""

    def __init__(self, now: Callable[[], float], new_token: Callable[[], str]) -> None:
        self._now = now
        self._new_token = new_token
        self._sessions: dict[str, Session] = {}
        self._failures: dict[str, list[float]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, user: str, security: ClientSecurity, rights: Rights = EVERYTHING) -> Session:
        """Begin a session; end the one that was idle for longest if there are too many."""
        now = self._now()
        if len(self._sessions) >= SESSIONS_MAX:
            self.close(min(self._sessions.values(), key=lambda item: item.used_at))
        session = Session(
            self._new_token(), self._new_token(), user, security, rights, now, now, now
        )
        self._sessions[session.token] = session
        return session

    def find(self, token: str) -> Session | None:
        """Return the session of a cookie, unless its time is over."""
        session = self._sessions.get(token)
        if session is None:
            return None
        if not self.is_open(session):
            self.close(session)
            return None
        session.used_at = self._now()
        return session

    def is_open(self, session: Session) -> bool:
        now = self._now()
        return (
            session.token in self._sessions
            and now - session.began_at < SESSION_S_MAX
            and now - session.used_at < IDLE_S_MAX
        )

    def changed(self, session: Session) -> None:
        """Note that the user has changed the cluster, and with it what there is to see."""
        session.changed_at = self._now()

    def is_settling(self, session: Session) -> bool:
        """Return whether the user has just changed the cluster."""
        return self._now() - session.changed_at < SETTLE_S

    def peek(self, token: str) -> Session | None:
        """Return the session of a cookie without counting this as a use."""
        session = self._sessions.get(token)
        return session if session is not None and self.is_open(session) else None

    def close(self, session: Session) -> None:
        self._sessions.pop(session.token, None)

    def may_try(self, address: str) -> bool:
        """Return whether a client at this address may try to log in."""
        recent = self._recent(address)
        return len(recent) < FAILURES_MAX

    def failed(self, address: str) -> None:
        """Count a failed login."""
        if len(self._failures) >= ADDRESSES_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[address] = [*self._recent(address), self._now()][-FAILURES_MAX:]

    def _recent(self, address: str) -> list[float]:
        now = self._now()
        return [at for at in self._failures.get(address, ()) if now - at < FAILURE_S]
