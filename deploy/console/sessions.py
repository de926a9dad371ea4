"""Store the sessions of logged-in users for a limited time, and limit failed logins.

Invariants: pure; clock and tokens are parameters. There are at most `SESSIONS_MAX` sessions;
another login ends the one that has been idle longest. Nothing is written to disk, so a restart ends
all sessions.
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
"""Number of failed logins from one address within a minute after which additional ones are rejected
without a request to a broker.
"""
FAILURE_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000
RIGHTS_S: Final = 10.0
"""Age from which rights are requested again."""
SETTLE_S: Final = 2.0
"""Time after a change during which each page requests the rights again. After that, all brokers
have applied the change.
"""
UNKNOWN_S: Final = 15.0
"""Age from which rights count as unknown, which is longer than RIGHTS_S plus one request."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """A session of one user. user: empty without login. csrf: the form token of the session.
    security: how to connect to brokers as this user. rights: as of rights_at.
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
    """The time when the user last changed the cluster."""


class Sessions:
    """now: monotonic seconds. new_token: returns an unguessable string."""

    def __init__(self, now: Callable[[], float], new_token: Callable[[], str]) -> None:
        self._now = now
        self._new_token = new_token
        self._sessions: dict[str, Session] = {}
        self._failures: dict[str, list[float]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, user: str, security: ClientSecurity, rights: Rights = EVERYTHING) -> Session:
        """Begin a session. If there are too many, end the one that has been idle longest."""
        now = self._now()
        if len(self._sessions) >= SESSIONS_MAX:
            self.close(min(self._sessions.values(), key=lambda item: item.used_at))
        session = Session(
            self._new_token(), self._new_token(), user, security, rights, now, now, now
        )
        self._sessions[session.token] = session
        return session

    def find(self, token: str) -> Session | None:
        """Return the session of a cookie unless it has expired, and count this as activity."""
        session = self.peek(token)
        if session is None:
            self._sessions.pop(token, None)
        else:
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
        """Record that the user has changed the cluster, and possibly their own rights."""
        session.changed_at = self._now()

    def is_settling(self, session: Session) -> bool:
        """Return whether the user has just changed the cluster."""
        return self._now() - session.changed_at < SETTLE_S

    def needs_rights(self, session: Session, *, is_use: bool = True) -> bool:
        """Return whether the rights of the user must be requested first. is_use: whether the user
        made the request, rather than a script of the page.
        """
        age_s = self._now() - session.rights_at
        return age_s > RIGHTS_S or (is_use and self.is_settling(session))

    def has_rights(self, session: Session) -> bool:
        """Return whether the rights are recent enough to be applied."""
        return not session.rights.is_bounded or self._now() - session.rights_at <= UNKNOWN_S

    def checked(self, session: Session, rights: Rights) -> None:
        """Store the rights that the brokers have just reported."""
        session.rights, session.rights_at = rights, self._now()

    def peek(self, token: str) -> Session | None:
        """Return the session of a cookie without counting this as activity."""
        session = self._sessions.get(token)
        return session if session is not None and self.is_open(session) else None

    def close(self, session: Session) -> None:
        self._sessions.pop(session.token, None)

    def may_try(self, address: str) -> bool:
        """Return whether a client at this address may try to log in."""
        return len(self._recent(address)) < FAILURES_MAX

    def failed(self, address: str) -> None:
        """Count a failed login."""
        if len(self._failures) >= ADDRESSES_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[address] = [*self._recent(address), self._now()][-FAILURES_MAX:]

    def _recent(self, address: str) -> list[float]:
        now = self._now()
        return [at for at in self._failures.get(address, ()) if now - at < FAILURE_S]
