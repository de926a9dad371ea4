"""Run a mirror until it is stopped or finished, or has copied all initial records."""

import time
from collections.abc import Callable
from typing import Final

from penstock.base.errors import ExpectedError
from penstock.deploy.interrupts import Interrupts
from penstock.deploy.mirror.session import MirrorSession
from penstock.deploy.mirror.views import MirrorView
from penstock.protocol.client.brokers import Partition
from penstock.protocol.client.errors import KafkaFailed

REFRESH_S: Final = 5.0
"""Interval at which new topics, configs and group offsets are copied."""
ACLS_S: Final = 60.0
QUIET_S: Final = 3.0
"""Time without new records at the source after which a mirror may be finished."""
WRITES_S: Final = 10.0
"""How long `finish` waits for producers that still write to the source."""
_PAUSE_S: Final = 0.1
Show = Callable[[MirrorView], None]


def run(session: MirrorSession, interval_s: float, show: Show, *, once: bool) -> None:
    """Copy continuously. once: return when the initial records are copied. Also returns when the
    mirrors of all topics have finished. Raises KafkaFailed.
    """
    session.refresh()
    goal = session.source_ends(committed=True) if once else None
    clock = _Clock(session)
    session.sync_acls()
    session.sync_groups()
    shown_at = time.monotonic()
    with Interrupts() as interrupts:
        while True:
            interrupts.check()
            session.check_workers()
            if goal is not None and session.has_reached(goal):
                break
            if not session.plan.topics and session.plan.finished:
                show(session.view())
                return
            if time.monotonic() - shown_at >= interval_s:
                shown_at = time.monotonic()
                show(session.view())
            clock.tick()
            time.sleep(_PAUSE_S)
    session.sync_groups()
    show(session.view())


def finish(
    session: MirrorSession, interval_s: float, show: Show, *, timeout_s: float, force: bool
) -> list[str]:
    """Copy the remaining records, set the offsets of groups, and finish the mirror. Returns the
    topics that clients can now use.

    force: finish even if the source still receives records. Raises KafkaFailed, and ExpectedError
    if the source still receives records.
    """
    session.look()
    if not any(topic.action == "continue" for topic in session.plan.topics):
        done = ", ".join(session.plan.finished)
        raise ExpectedError(
            f"the mirror of these topics has ended already: {done}"
            if done
            else "no topic at the target is a mirror of this source: `penstock mirror` starts one"
        )
    session.only_continues = True
    session.refresh()
    _wait_until_copied(session, interval_s, show, timeout_s, force=force)
    session.stop()
    session.sync_groups()
    names = session.mark_finished()
    session.look()
    return names


def _wait_until_copied(
    session: MirrorSession, interval_s: float, show: Show, timeout_s: float, *, force: bool
) -> None:
    began = shown_at = time.monotonic()
    writes = _Writes()
    while True:
        session.check_workers()
        now = time.monotonic()
        if now - shown_at >= interval_s:
            shown_at = now
            show(session.view())
        ends = session.source_ends(committed=force)
        writes.saw(ends, now)
        if session.has_reached(ends) and (force or writes.is_quiet(now)):
            return
        if not force and now - began > WRITES_S and (written := writes.topics(now)):
            raise ExpectedError(
                f"the source still receives records in {', '.join(written)}: stop the "
                "producers, then run this again. --force finishes anyway; records written to "
                "the source after that are not copied"
            )
        if now - began > timeout_s:
            raise KafkaFailed(_why_not(session, ends, timeout_s))
        time.sleep(_PAUSE_S)


def _why_not(session: MirrorSession, ends: dict[Partition, int], timeout_s: float) -> str:
    behind = [
        state for key, state in sorted(session.states.items()) if state.position < ends.get(key, 0)
    ]
    names = ", ".join(state.name for state in behind[:10])
    if behind and all(state.position >= state.stable_end >= 0 for state in behind):
        return (
            f"transactions are open at the source in {names}: their records are not copied before"
            " they end; see `penstock transactions` or kafka-transactions.sh"
        )
    problem = "; ".join(session.view().problem)
    return f"{names} is not copied after {timeout_s:.0f} s{': ' if problem else ''}{problem}"


class _Writes:
    """Records when the log ends of the source last increased."""

    def __init__(self) -> None:
        self._ends: dict[Partition, int] = {}
        self._grew_at: dict[Partition, float] = {}
        self._began: float | None = None

    def saw(self, ends: dict[Partition, int], now: float) -> None:
        self._began = now if self._began is None else self._began
        for key, end in ends.items():
            if self._ends.get(key, end) != end:
                self._grew_at[key] = now
        self._ends = ends

    def is_quiet(self, now: float) -> bool:
        since = max([*self._grew_at.values(), self._began or now])
        return now - since >= QUIET_S

    def topics(self, now: float) -> list[str]:
        return sorted({key[0] for key, at in self._grew_at.items() if now - at < QUIET_S})


class _Clock:
    """Synchronizes topics, groups and ACLs in turn. Failures are retried."""

    def __init__(self, session: MirrorSession) -> None:
        self._session = session
        self._refreshed_at = self._acls_at = time.monotonic()

    def tick(self) -> None:
        session, now = self._session, time.monotonic()
        if now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        try:
            session.refresh()
            session.sync_groups()
            if now - self._acls_at >= ACLS_S:
                self._acls_at = now
                session.sync_acls()
        except KafkaFailed as error:
            session.problem = str(error)
            session.source.reset()
            session.target.reset()
        else:
            session.problem = ""
