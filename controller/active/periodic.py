"""Periodic tasks of the active controller: fence dead brokers and brokers that do not close moving
partitions, assign WAL recoveries, hold due elections, remove deleted topics, and expire and destroy
objects.
"""

import asyncio
from collections.abc import Callable

import structlog

from penstock.base.clock import MonotonicClock
from penstock.base.ids import Millis, NodeEpoch, NodeId
from penstock.controller.active.dead_wals import DeadWals
from penstock.controller.active.record_ages import Timeline
from penstock.controller.active.sessions import SessionEnded, Sessions
from penstock.controller.active.writer import Runtime
from penstock.controller.api.errors import NotLeader, QuorumClosed
from penstock.controller.api.messages import Status
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.delegation_tokens import remove_expired_tokens
from penstock.controller.managers.deleted_records import drop_kept
from penstock.controller.managers.deleted_topics import remove_deleted
from penstock.controller.managers.elections import elect_leaderless
from penstock.controller.managers.failover import assign_recoveries, end_lost_wals, lost_wals
from penstock.controller.managers.nodes import fence_brokers
from penstock.controller.managers.objects import destroy_unreferenced, expire_prepared
from penstock.controller.managers.reassign import MoveUnderWay, moves_under_way, sources_of
from penstock.controller.managers.result import Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset, Record
from penstock.stream.ports import BrokerIncarnation

_log = structlog.get_logger(__name__)
OBJECTS_PER_TRANSACTION_MAX = 1_000
ROUNDS_MAX = 100
"""Maximum number of transactions of one kind in one maintenance round. The next round continues."""

Chore = Callable[[MetadataImage, Millis], list[Record]]


class Ticks:
    """The periodic tasks of one active controller.

    Managers make all decisions. The writer runs and commits these decisions like requests, in
    bounded transactions that are repeated while there is work. The work depends on the current
    state, not on events, so a lost wake-up delays it by at most one maintenance interval. Fencing
    has its own task, so that long maintenance does not delay it. Durations are measured with a
    monotonic clock and restart when the leader changes.
    """

    def __init__(
        self,
        config: ControllerConfig,
        runtime: Runtime,
        sessions: Sessions,
        *,
        disconnect: Callable[[NodeId, NodeEpoch], None],
        due: asyncio.Event,
        timeline: Timeline,
        now: MonotonicClock,
        backed_up: Callable[[], MetadataOffset],
        dead_wals: DeadWals,
    ) -> None:
        """due: set to run maintenance immediately, because a broker has joined or left. timeline:
        the timeline of this active controller, to which `maintain` adds. backed_up: returns the end
        of the backup. dead_wals: updated with each image.
        """
        self._config = config
        self._runtime = runtime
        self._sessions = sessions
        self._disconnect = disconnect
        self._now = now
        self._due = due
        self._timeline = timeline
        self._moves: dict[MoveUnderWay, float] = {}
        """The time when this process first saw each move."""
        self._backed_up = backed_up
        self._dead_wals = dead_wals
        self._lost_wals: dict[BrokerIncarnation, MetadataOffset] = {}
        """The end of the metadata log when this process first saw each WAL in a lost WAL store."""
        self._chores: tuple[tuple[str, Chore], ...] = (
            (
                "AssignRecoveries",
                lambda image, now_ms: (
                    self._end_lost_wals(image, now_ms) or assign_recoveries(image, sessions.alive())
                ),
            ),
            (
                "ElectLeaderless",
                lambda image, now_ms: elect_leaderless(image, sessions.alive(), now_ms),
            ),
            (
                "ExpirePrepared",
                lambda image, now_ms: expire_prepared(
                    image, now_ms, self._age_s, OBJECTS_PER_TRANSACTION_MAX
                ),
            ),
            (
                "RemoveDeletedTopics",
                lambda image, _: remove_deleted(image, self._age_s, config.deleted_partitions_max),
            ),
            (
                "DropKeptLogs",
                lambda image, _: drop_kept(image, self._age_s),
            ),
            ("RemoveExpiredTokens", remove_expired_tokens),
            (
                "DestroyUnreferenced",
                lambda image, now_ms: destroy_unreferenced(
                    image, now_ms, OBJECTS_PER_TRANSACTION_MAX
                ),
            ),
        )

    async def watch_sessions(self) -> None:
        """Fence silent brokers. Run until cancelled or until the runtime ends."""
        longest_ms = self._config.tick_interval_ms
        while True:
            now_ms = int(self._now() * 1_000)
            interval_ms = self._sessions.next_end_in_ms(now_ms, longest_ms)
            ended = self._sessions.expired(now_ms, interval_ms)
            if ended:
                await self._fence(ended)
            await asyncio.sleep(interval_ms / 1_000)

    async def watch_moves(self) -> None:
        """Fence sources that do not close moving partitions in time. Run until cancelled or until
        the runtime ends.

        A new leader grants a source the full timeout again, because it could not close partitions
        while no controller was active.
        """
        while True:
            await self._fence_overdue()
            await asyncio.sleep(self._config.maintenance_interval_ms / 1_000)

    async def _fence_overdue(self) -> None:
        ended: list[SessionEnded] = []

        def fence_overdue(image: MetadataImage, _: Millis) -> Result[None]:
            now = self._now()
            self._moves = {move: self._moves.get(move, now) for move in moves_under_way(image)}
            timeout_s = self._config.move_timeout_ms / 1_000
            overdue = sources_of(
                image, [move for move, since in self._moves.items() if now - since >= timeout_s]
            )
            ended.extend(
                SessionEnded(
                    node.node_id,
                    node.node_epoch,
                    f"it did not close partition {key.partition} of topic {key.topic_id} in time",
                )
                for node, key in overdue.items()
            )
            return Result(fence_brokers(image, overdue))

        try:
            reply = await self._runtime.submit("FenceOverdue", fence_overdue)
        except TimeoutError:
            return
        if reply.status is Status.OK:
            self._end_sessions(
                [end for end in ended if self._sessions.is_current(end.node_id, end.node_epoch)]
            )

    async def maintain(self) -> None:
        """Run all maintenance immediately and then repeatedly, until cancelled or until the runtime
        ends.
        """
        while True:
            self._due.clear()
            await self._runtime.with_committed_image(self._note)
            for name, chore in self._chores:
                await self._run_chore(name, chore)
            try:
                async with asyncio.timeout(self._config.maintenance_interval_ms / 1_000):
                    await self._due.wait()
            except TimeoutError:
                continue

    def _note(self, image: MetadataImage) -> None:
        """Record the age of the log, and adapt the sessions to the image: the request that
        registered or fenced a broker may have timed out before it was committed.
        """
        now = self._now()
        self._timeline.note(image.end_offset, now)
        fenced: list[SessionEnded] = []
        for node in image.nodes:
            if not node.fenced:
                self._sessions.registered(node.node_id, node.node_epoch, int(now * 1_000))
            elif self._sessions.is_current(node.node_id, node.node_epoch):
                fenced.append(SessionEnded(node.node_id, node.node_epoch, "a fence was delayed"))
        self._end_sessions(fenced)

    def _end_lost_wals(self, image: MetadataImage, now_ms: Millis) -> list[Record]:
        """End WALs in lost WAL stores after the loss is in the backup. Otherwise, a recovery from
        the backup could read such a WAL again, although it overlaps the records of later leaders.
        """
        self._dead_wals.note(image)
        seen = self._lost_wals
        self._lost_wals = {
            writer: seen.get(writer, image.end_offset) for writer in lost_wals(image)
        }
        backed_up = self._backed_up()
        due = [writer for writer, offset in self._lost_wals.items() if offset <= backed_up]
        return end_lost_wals(image, due, now_ms, live=self._sessions.alive())

    def _age_s(self, offset: MetadataOffset) -> float:
        return self._timeline.age_s(offset, self._now())

    async def _fence(self, ended: list[SessionEnded]) -> None:
        """Commit the fences, then end the sessions. If the queue is full, the next tick finds the
        same sessions again.
        """
        dead = [BrokerIncarnation(end.node_id, end.node_epoch) for end in ended]
        try:
            reply = await self._runtime.submit(
                "FenceBrokers", lambda image, _: Result(fence_brokers(image, dead))
            )
        except TimeoutError:
            return
        if reply.status is not Status.OK:
            return
        self._end_sessions(ended)

    def _end_sessions(self, ended: list[SessionEnded]) -> None:
        for end in ended:
            _log.warning(
                "broker_fenced", node_id=end.node_id, node_epoch=end.node_epoch, reason=end.reason
            )
            self._sessions.removed(end.node_id, end.node_epoch)
            self._disconnect(end.node_id, end.node_epoch)
        if ended:
            self._due.set()

    async def _run_chore(self, name: str, chore: Chore) -> None:
        for _ in range(ROUNDS_MAX):
            done = 0

            def work(image: MetadataImage, now_ms: Millis) -> Result[None]:
                nonlocal done
                records = chore(image, now_ms)
                done = len(records)
                return Result(records)

            try:
                await self._runtime.submit(name, work)
            except TimeoutError:
                return
            if not done:
                return


OVER = (QuorumClosed, NotLeader)
"""Errors that end the tasks normally: the runtime has ended, and another controller or process
takes over.
"""
