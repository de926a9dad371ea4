"""Pages that the console builds and caches are limited, and served only to users with checked
rights.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from penstock.base.acls import Operation
from penstock.deploy.clients.security import PLAINTEXT
from penstock.deploy.console import kept_pages
from penstock.deploy.console.console import CALLS_MAX, Console
from penstock.deploy.console.decoding import SchemaCache
from penstock.deploy.console.kept_pages import KeptPages
from penstock.deploy.console.live import LiveCluster
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.console.page_builds import BUILDS_MAX, BUILDS_OF_SESSION_MAX, PageBuilds
from penstock.deploy.console.rights import Rights
from penstock.deploy.console.rights_checks import RightsChecks, SessionOver
from penstock.deploy.console.sessions import RIGHTS_S, UNKNOWN_S, Session, Sessions
from penstock.deploy.errors import Busy
from penstock.protocol.client.errors import AuthenticationRefused, KafkaFailed, NoResponse

SEES = Rights(cluster=frozenset({Operation.DESCRIBE}))
PAGE = b"page"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def session_of(user: str, rights: Rights = SEES) -> Session:
    return Session(user, "", user, PLAINTEXT, rights)


# --- cached pages ---------------------------------------------------------------------------------


def test_a_cached_page_is_served_only_to_the_same_session_with_the_same_rights() -> None:
    kept, alice = KeptPages(Clock()), session_of("alice")
    kept.keep(alice, "/topics", PAGE, 90.0)
    found = kept.find(alice, "/topics")
    assert found is not None
    assert (found.body, found.began_at) == (PAGE, 90.0)
    assert kept.find(session_of("bob"), "/topics") is None
    assert kept.find(alice, "/groups") is None
    alice.rights = Rights(cluster=SEES.cluster)  # equal rights, checked again
    assert kept.find(alice, "/topics") is not None
    alice.rights = Rights()
    assert kept.find(alice, "/topics") is None
    alice.rights = SEES
    assert kept.find(alice, "/topics") is None, "it is gone"


def test_cached_pages_are_limited_in_number_size_and_age() -> None:
    clock, alice = Clock(), session_of("alice")
    kept = KeptPages(clock)
    for number in range(kept_pages.PAGES_MAX + 1):
        kept.keep(alice, str(number), PAGE, clock.now)
    assert len(kept) == kept_pages.PAGES_MAX
    assert kept.find(alice, "0") is None
    for number in range(kept_pages.PAGES_MAX):
        kept.keep(alice, str(number), bytes(kept_pages.PAGE_BYTES_MAX), clock.now)
    assert len(kept) == kept_pages.BYTES_MAX // kept_pages.PAGE_BYTES_MAX
    kept.keep(alice, "large", bytes(kept_pages.PAGE_BYTES_MAX + 1), clock.now)
    assert kept.find(alice, "large") is None
    clock.now += kept_pages.AGE_S_MAX + 1
    assert kept.find(alice, str(kept_pages.PAGES_MAX - 1)) is None
    kept.keep(alice, "new", PAGE, clock.now)
    assert len(kept) == 1
    kept.drop("alice")
    assert len(kept) == 0


# --- builds ---------------------------------------------------------------------------------------


async def forever() -> bytes:
    await asyncio.Event().wait()
    return PAGE


async def at_once() -> bytes:
    return PAGE


async def test_builds_are_shared_and_limited() -> None:
    builds: PageBuilds[bytes] = PageBuilds()
    first = builds.begin(("alice", "/"), forever)
    assert builds.begin(("alice", "/"), forever) is first
    for number in range(BUILDS_OF_SESSION_MAX - 1):
        builds.begin(("alice", str(number)), forever)
    with pytest.raises(Busy):
        builds.begin(("alice", "more"), forever)
    for number in range(BUILDS_MAX - BUILDS_OF_SESSION_MAX):
        builds.begin(("", str(number)), forever)
    with pytest.raises(Busy):
        builds.begin(("bob", "/"), forever)
    builds.drop("alice")
    done = builds.begin(("bob", "/"), at_once)
    assert await done.task == PAGE
    await builds.close()
    assert first.task.cancelled()
    assert len(builds) == 0


async def test_a_page_whose_build_started_before_a_change_is_rebuilt() -> None:
    builds: PageBuilds[bytes] = PageBuilds()
    first = builds.begin(("", "/"), forever)
    second = builds.begin(("", "/"), at_once, changed_at=first.began_at + 1e-9)
    assert second is not first
    assert await second.task == PAGE
    assert first.task.cancelled()
    builds.fetched(("", "/"), second)
    assert len(builds) == 0


async def test_finished_builds_free_their_slot() -> None:
    builds: PageBuilds[bytes] = PageBuilds()
    for number in range(BUILDS_MAX):
        await builds.begin(("", str(number)), at_once).task
    builds.begin(("", "more"), at_once)
    assert len(builds) == BUILDS_MAX
    await builds.close()


async def test_a_canceled_request_keeps_its_slot_until_its_thread_is_done() -> None:
    options = ConsoleOptions(bootstrap="127.0.0.1:1")
    live, sessions = LiveCluster(options, lambda: 0), Sessions(lambda: 0.0, lambda: "t")
    console = Console(options, live, sessions, SchemaCache(None), "csrf")
    release, running = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        running.release()
        release.wait()

    try:
        calls = [asyncio.create_task(console.call(block)) for _ in range(CALLS_MAX)]
        for _ in calls:
            await asyncio.to_thread(running.acquire)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        waiting = asyncio.create_task(console.call(threading.active_count))
        await asyncio.sleep(0)
        assert not waiting.done(), "all threads are taken"
    finally:
        release.set()
    assert await waiting > 0
    assert not running.acquire(blocking=False)
    await console.close()
    await live.stop()


# --- rights ---------------------------------------------------------------------------------------


class Users:
    """Sessions whose rights are reported by a broker, or are unknown."""

    def __init__(self) -> None:
        self.clock = Clock()
        numbers = count()
        self.sessions = Sessions(self.clock, lambda: f"token-{next(numbers)}")
        self.session = self.sessions.open("alice", PLAINTEXT, SEES)
        self.response: Callable[[], Awaitable[Rights]] = self.same
        self.requested = 0
        self.changed: list[str] = []
        self.checks = RightsChecks(self.sessions, self._send_request, self.changed.append)

    async def same(self) -> Rights:
        return Rights(cluster=SEES.cluster)

    async def nothing(self) -> Rights:
        return Rights()

    async def _send_request(self, _session: Session) -> Rights:
        self.requested += 1
        return await self.response()


def failing(error: Exception) -> Callable[[], Awaitable[Rights]]:
    async def fail() -> Rights:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        NoResponse("silent"),
        KafkaFailed("the rights on the cluster are not known: COORDINATOR_LOAD_IN_PROGRESS"),
        Busy("busy"),
        TimeoutError(),
    ],
)
async def test_unknown_rights_count_as_neither_denied_nor_allowed(error: Exception) -> None:
    users = Users()
    users.response = failing(error)
    await users.checks.wait(users.session)
    users.clock.now += RIGHTS_S + 1
    for _ in range(3):
        with pytest.raises(NoResponse):
            await users.checks.wait(users.session)
    assert users.requested == 1, "a failure counts for a while"
    assert (users.session.rights, users.changed) == (SEES, [])
    assert users.sessions.has_rights(users.session)
    users.clock.now += UNKNOWN_S
    assert not users.sessions.has_rights(users.session)


async def test_requests_of_a_session_share_one_check() -> None:
    users = Users()
    users.clock.now += RIGHTS_S + 1
    await asyncio.gather(*(users.checks.wait(users.session) for _ in range(5)))
    await users.checks.wait(users.session)
    assert (users.requested, users.changed) == (1, [])


async def test_cached_decisions_are_dropped_when_rights_change() -> None:
    users = Users()
    users.clock.now += RIGHTS_S + 1
    users.response = users.nothing
    await users.checks.wait(users.session)
    assert (users.session.rights, users.changed) == (Rights(), [users.session.token])


async def test_a_user_that_brokers_reject_is_logged_out() -> None:
    users = Users()
    users.clock.now += RIGHTS_S + 1
    users.response = failing(AuthenticationRefused("user 'alice': wrong password"))
    with pytest.raises(SessionOver):
        await users.checks.wait(users.session)
    assert not users.sessions.is_open(users.session)
    assert users.changed == [users.session.token]


async def test_recent_rights_stay_valid_after_a_failed_check() -> None:
    users = Users()
    users.response = failing(NoResponse("silent"))
    users.sessions.changed(users.session)
    await users.checks.wait(users.session)
    assert (users.requested, users.session.rights) == (1, SEES)
