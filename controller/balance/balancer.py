"""Balancing in the active controller: takes the brokers' reports, proposes moves, and in auto mode
makes them and relieves slow brokers.

Invariants: nothing happens before every living broker has reported to this process, so a new leader
begins with fresh figures; no round while anything moves, whoever moves it; a partition that moved
rests for the cool-down; slow brokers are elected for nothing as long as others live. Every decision
is checked again by a manager in the writer's turn (`move_leaders`, `relieve`). Planning gives way
to fencing and electing again and again. Must not write metadata of its own: its state ends
with the epoch of this active controller.
Source: AutoMQ `AnomalyDetector` and `ActionExecutor`, ADR 0015.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from base.clock import MonotonicClock, WallClock
from base.ids import Millis, NodeId
from controller.api import load_messages as lm
from controller.api import messages as m
from controller.balance.loads import LoadBook
from controller.balance.plan import Limits, Plan, Planning
from controller.balance.slow import SlowBrokers
from controller.balance.view import NO_REPORT, BalanceView, Conditions, view
from controller.config import ControllerConfig
from controller.managers.reassign import MOVES_MAX, move_leaders, relieve
from controller.managers.result import Result
from controller.metadata.image import MetadataImage
from controller.metadata.topics import NO_LEADER
from controller.writer.runtime import Runtime
from controller.writer.sessions import Sessions
from stream.ports import BrokerIncarnation

_log = structlog.get_logger()
FRESH_MS: Final = 10_000
"""A broker's report stands for it so long: five intervals."""
RELIEVED_COUNT: Final = 100
"""Partitions that leave a slow broker at the same time."""


class Balancer:
    def __init__(
        self,
        config: ControllerConfig,
        runtime: Runtime,
        sessions: Sessions,
        *,
        now: MonotonicClock,
        now_ms: WallClock,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._sessions = sessions
        self._now = now
        self._wall_ms = now_ms
        self._book = LoadBook(FRESH_MS)
        self._slow = SlowBrokers()
        self._excluded: dict[NodeId, str] = {}
        self._limits = Limits(bytes_min=config.balance_bytes_min)

    def live(self) -> frozenset[NodeId]:
        """Brokers that may be given work. The last one that lives is never excluded: slow is better
        than nobody.
        """
        alive = self._sessions.alive()
        return alive.difference(self._slow.excluded(alive)) if self._config.auto_balance else alive

    @property
    def excluded_count(self) -> int:
        """As it was logged last: nobody is without auto mode."""
        return len(self._excluded)

    async def report(
        self, request: lm.ReportLoad, timeout_s: float | None, size_bytes: int, request_id: str
    ) -> m.Reply[Any]:
        """No metadata: beside the writer. One of an earlier start of the broker is not taken."""
        del timeout_s, size_bytes, request_id
        node_id = request.node_id
        if self._sessions.is_current(node_id, request.node_epoch):
            now_ms = self._now_ms()
            self._book.add(request, now_ms)
            self._slow.heard(node_id, request.node_epoch, self._book.answers(now_ms))
            self._log_exclusions()
        return m.Reply(
            controller_epoch=self._runtime.epoch,
            value=lm.LoadReported(excluded=node_id in self._slow.excluded(self._sessions.alive())),
        )

    async def propose(
        self, request: lm.ProposeMoves, timeout_s: float | None, size_bytes: int, request_id: str
    ) -> m.Reply[Any]:
        """For people: who asks knows what has just moved, so there is no cool-down."""
        del timeout_s, size_bytes, request_id
        seen = await self._view(cooldown_ms=0, topics=request.topics)
        limits = replace(self._limits, moves_max=max(0, min(request.moves_max, MOVES_MAX)))
        found = await _plan(seen, limits)
        now_ms = self._now_ms()
        value = lm.MovesProposed(
            auto=self._config.auto_balance,
            moves=found.moves,
            before=[self._with_answers(broker, now_ms) for broker in found.before],
            after=found.after,
        )
        return m.Reply(controller_epoch=self._runtime.epoch, value=value)

    async def run(self) -> None:
        """Auto mode. Runs until it is cancelled or the runtime is over; without auto mode it has
        nothing to do.
        """
        interval_s = self._config.balance_interval_ms / 1_000
        while self._config.auto_balance:
            await asyncio.sleep(interval_s)
            try:
                await self._relieve_slow()
                await self._balance()
            except TimeoutError:
                continue  # the writer is busy; the next round sees the same

    async def _balance(self) -> None:
        seen = await self._view(cooldown_ms=self._config.balance_cooldown_ms)
        if seen.moving or any(broker.note == NO_REPORT for broker in seen.brokers):
            return
        found = await _plan(seen, self._limits)
        if not found.moves:
            return
        request = lm.MoveLeaders(
            moves=[
                lm.LeaderMove(
                    topic=p.topic, partition=p.partition, source=p.source, target=p.target
                )
                for p in found.moves
            ]
        )

        def begin(image: MetadataImage, now_ms: Millis) -> Result[m.ItemResults]:
            return move_leaders(
                image, request, now_ms, live=self.live(), timeout_ms=self._config.move_timeout_ms
            )

        reply: m.Reply[m.ItemResults] = await self._runtime.submit("Balance", begin)
        if reply.value is None:
            return
        for proposed, result in zip(found.moves, reply.value.items, strict=True):
            if result.status is m.Status.OK:
                _log.info(
                    "partition_balanced",
                    topic=proposed.topic,
                    partition=proposed.partition,
                    source=proposed.source,
                    target=proposed.target,
                    reason=proposed.reason,
                )

    async def _relieve_slow(self) -> None:
        """What slow brokers lead moves away, some at a time: the next ones when these have
        arrived.
        """
        self._log_exclusions()
        for node_id in self._excluded:

            def begin(
                image: MetadataImage, now_ms: Millis, node_id: NodeId = node_id
            ) -> Result[None]:
                node = image.nodes.get(node_id)
                live = self.live()
                if node is None or node.fenced or node_id in live or _is_giving_up(image, node_id):
                    return Result()
                me = BrokerIncarnation(node.node_id, node.node_epoch)
                timeout_ms = self._config.move_timeout_ms
                return Result(
                    relieve(
                        image,
                        me,
                        now_ms,
                        live=live,
                        timeout_ms=timeout_ms,
                        partitions_max=RELIEVED_COUNT,
                    )
                )

            await self._runtime.submit("RelieveSlow", begin)

    async def _view(self, *, cooldown_ms: int, topics: tuple[str, ...] = ()) -> BalanceView:
        alive = self._sessions.alive()
        conditions = Conditions(
            alive, self._slow.excluded(alive), self._now_ms(), self._wall_ms(), cooldown_ms, topics
        )
        return await self._runtime.with_committed_image(
            lambda image: view(image, self._book, conditions)
        )

    def _log_exclusions(self) -> None:
        """Log who was excluded and who was taken back."""
        excluded: Mapping[NodeId, str] = (
            self._slow.excluded(self._sessions.alive()) if self._config.auto_balance else {}
        )
        for node_id in excluded.keys() - self._excluded.keys():
            _log.warning("broker_excluded", node_id=node_id, reason=excluded[node_id])
        for node_id in self._excluded.keys() - excluded.keys():
            _log.warning("broker_taken_back", node_id=node_id, was=self._excluded[node_id])
        self._excluded = dict(excluded)

    def _with_answers(self, broker: lm.BrokerLoad, now_ms: int) -> lm.BrokerLoad:
        report = self._book.report_of(broker.node_id, now_ms)
        if report is None:
            return broker
        return msgspec.structs.replace(
            broker,
            append_p50_ms=report.answer_ms,
            append_p99_ms=report.answer_p99_ms,
            loop_lag_ms=report.loop_lag_ms,
            store=report.store,
            troubles=report.troubles,
        )

    def _now_ms(self) -> int:
        return int(self._now() * 1_000)


async def _plan(seen: BalanceView, limits: Limits) -> Plan:
    """A little at a time: sessions, elections and requests go on meanwhile."""
    planning = Planning(seen.brokers, seen.partitions, limits)
    for _ in planning.steps():
        await asyncio.sleep(0)
    return planning.result()


def _is_giving_up(image: MetadataImage, node_id: NodeId) -> bool:
    """Moves away from this broker have begun and not ended."""
    waiting = (image.topics.partition(key) for key in image.topics.led_by(NO_LEADER))
    return any(
        p is not None
        and p.target_replicas is not None
        and p.move is not None
        and p.move.source == node_id
        for p in waiting
    )
