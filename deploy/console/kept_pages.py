"""Cache the last page of each address per user, and display it while the cluster does not respond.

Invariants: pure; the clock is a parameter. A page is returned only to the session that it was built
for, and only while the rights of that session are unchanged. Limits: PAGES_MAX pages, BYTES_MAX in
total, PAGE_BYTES_MAX each, for AGE_S_MAX.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.deploy.console.rights import Rights
from penstock.deploy.console.sessions import Session

PAGES_MAX: Final = 128
BYTES_MAX: Final = 16 << 20
PAGE_BYTES_MAX: Final = 256 << 10
AGE_S_MAX: Final = 900.0


class KeptPage(NamedTuple):
    """began_at: the time when the console began to build the page; its values are not newer."""

    body: bytes
    began_at: float
    rights: Rights


class KeptPages:
    """Pages by session token and address."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._pages: OrderedDict[tuple[str, str], KeptPage] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._pages)

    def keep(self, session: Session, address: str, body: bytes, began_at: float) -> None:
        """Keep a page that was built with the current rights of the session."""
        self.discard(session, address)
        if len(body) > PAGE_BYTES_MAX:
            return
        self._pages[session.token, address] = KeptPage(body, began_at, session.rights)
        self._bytes += len(body)
        while self._pages and (len(self._pages) > PAGES_MAX or self._bytes > BYTES_MAX):
            self._remove(next(iter(self._pages)))
        for key in [key for key, kept in self._pages.items() if self._is_old(kept)]:
            self._remove(key)

    def find(self, session: Session, address: str) -> KeptPage | None:
        """Return the last page that the session loaded from this address, if it is still valid."""
        key = (session.token, address)
        kept = self._pages.get(key)
        if kept is None:
            return None
        if self._is_old(kept) or kept.rights != session.rights:
            self._remove(key)
            return None
        self._pages.move_to_end(key)
        return kept

    def discard(self, session: Session, address: str) -> None:
        """Drop an outdated page."""
        if (session.token, address) in self._pages:
            self._remove((session.token, address))

    def drop(self, token: str) -> None:
        """Drop all pages of a session that has ended or whose rights have changed."""
        for key in [key for key in self._pages if key[0] == token]:
            self._remove(key)

    def _is_old(self, kept: KeptPage) -> bool:
        return self._now() - kept.began_at > AGE_S_MAX

    def _remove(self, key: tuple[str, str]) -> None:
        self._bytes -= len(self._pages.pop(key).body)
