"""Balancing in the active controller: collect the brokers' reports and propose moves. In auto mode,
also execute the moves and relieve slow brokers. See docs/design/balancing.md.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from penstock.base.clock import MonotonicClock, WallClock
from penstock.base.ids import Millis, NodeId
from penstock.controller.active.balance.loads import LoadBook
from penstock.controller.active.balance.plan import Limits, Plan, Planning
from penstock.controller.active.balance.slow import SlowBrokers
from penstock.controller.active.balance.view import NO_REPORT, BalanceView, Conditions, view
from penstock.controller.active.sessions import Sessions
from penstock.controller.active.wal_rewrites import WalRewrites
from penstock.controller.active.writer import Runtime, Submission
from penstock.controller.api import load_messages as lm
from penstock.controller.api import messages as m
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.reassign import MOVES_MAX, move_leaders, relieve
from penstock.controller.managers.result import Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import NO_LEADER
from penstock.stream.ports import BrokerIncarnation

_log = structlog.get_logger(__name__)
FRESH_MS: Final = 10_000
"""How long a broker's report is valid, in ms; five report intervals."""
RELIEVED_COUNT: Final = 100
"""Number of partitions that move away from a slow broker concurrently."""


class Balancer:
    """The balancer of one active controller epoch.

    No moves are made until every live broker has reported to this process, or while any partition
    is moving. A partition that has moved is not moved again during the cooldown, and a restarted
    broker is ignored for a while. A manager checks every decision again in the writer
    (`move_leaders`, `relieve`). Planning yields often, so that fencing and elections are not
    delayed.
    """

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
        self._wal_rewrites = WalRewrites(lambda: runtime.image, now)

    def live(self) -> frozenset[NodeId]:
        """Return the brokers that may receive partitions.

        At most half of the live brokers are excluded, because a slow broker is better than none.
        """
        alive = self._sessions.alive()
        return alive.difference(self._slow.excluded(alive)) if self._config.auto_balance else alive

    @property
    def excluded_count(self) -> int:
        """Return the number of excluded brokers at the time of the last log event. It is 0 unless
        auto mode is enabled.
        """
        return len(self._excluded)

    async def report(self, request: lm.ReportLoad, _: Submission) -> m.Reply[Any]:
        """Process a broker's report. Reports from an earlier start of the broker are ignored.

        This does not change metadata, so it does not use the writer.
        """
        node_id = request.node_id
        if self._sessions.is_current(node_id, request.node_epoch):
            now_ms = self._now_ms()
            self._book.add(request, now_ms)
            self._slow.heard(node_id, request.node_epoch, self._book.latencies(now_ms))
            self._log_exclusions()
        excluded = node_id in self._slow.excluded(self._sessions.alive())
        reporter = BrokerIncarnation(node_id, request.node_epoch)
        rewrite = () if excluded else self._wal_rewrites.assigned_to(reporter)
        return m.Reply(
            controller_epoch=self._runtime.epoch,
            value=lm.LoadReported(excluded=excluded, rewrite=rewrite),
        )

    async def propose(self, request: lm.ProposeMoves, _: Submission) -> m.Reply[Any]:
        """Propose moves to an operator, without the cooldown and the delay, because the operator
        can see recent moves and restarts.
        """
        seen = await self._view(cooldown_ms=0, return_delay_ms=0, topics=request.topics)
        limits = replace(self._limits, moves_max=max(0, min(request.moves_max, MOVES_MAX)))
        found = await _plan(seen, limits)
        now_ms = self._now_ms()
        value = lm.MovesProposed(
            auto=self._config.auto_balance,
            moves=found.moves,
            before=[self._described(broker, now_ms) for broker in found.before],
            after=found.after,
        )
        return m.Reply(controller_epoch=self._runtime.epoch, value=value)

    async def run(self) -> None:
        """Run auto mode until cancelled or until the runtime ends. Return immediately if auto mode
        is disabled.
        """
        interval_s = self._config.balance_interval_ms / 1_000
        while self._config.auto_balance:
            await asyncio.sleep(interval_s)
            try:
                await self._relieve_slow()
                await self._balance()
            except TimeoutError:
                continue  # the writer is busy; the next round will see the same state

    async def _balance(self) -> None:
        seen = await self._view(
            cooldown_ms=self._config.balance_cooldown_ms,
            return_delay_ms=self._config.balance_return_delay_ms,
        )
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
        """Move partitions away from slow brokers, a limited number at a time. More partitions
        follow once these have moved.
        """
        self._log_exclusions()
        for node_id in self._excluded:

            def begin(
                image: MetadataImage, now_ms: Millis, node_id: NodeId = node_id
            ) -> Result[None]:
                node = image.nodes.get(node_id)
                live = self.live()
                if node is None or node.fenced or node_id in live or _is_releasing(image, node_id):
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

    async def _view(
        self, *, cooldown_ms: int, return_delay_ms: int, topics: tuple[str, ...] = ()
    ) -> BalanceView:
        alive = self._sessions.alive()
        conditions = Conditions(
            alive,
            self._slow.excluded(alive),
            self._now_ms(),
            self._wall_ms(),
            cooldown_ms,
            return_delay_ms,
            topics,
        )
        return await self._runtime.with_committed_image(
            lambda image: view(image, self._book, conditions)
        )

    def _log_exclusions(self) -> None:
        """Log newly excluded brokers and brokers that are included again."""
        excluded: Mapping[NodeId, str] = (
            self._slow.excluded(self._sessions.alive()) if self._config.auto_balance else {}
        )
        for node_id in excluded.keys() - self._excluded.keys():
            _log.warning("broker_excluded", node_id=node_id, reason=excluded[node_id])
        for node_id in self._excluded.keys() - excluded.keys():
            _log.warning("broker_readmitted", node_id=node_id, was=self._excluded[node_id])
        self._excluded = dict(excluded)

    def _described(self, broker: lm.BrokerLoad, now_ms: int) -> lm.BrokerLoad:
        """Add the session to the broker's load, and the latencies of its last report if that is
        still valid.
        """
        session = self._sessions.describe(broker.node_id, now_ms)
        report = self._book.report_of(broker.node_id, now_ms)
        if report is None:
            return msgspec.structs.replace(broker, session=session)
        return msgspec.structs.replace(
            broker,
            session=session,
            append_p50_ms=report.response_ms,
            append_p99_ms=report.response_p99_ms,
            loop_lag_ms=report.loop_lag_ms,
            store=report.store,
            problems=report.problems,
        )

    def _now_ms(self) -> int:
        return int(self._now() * 1_000)


async def _plan(seen: BalanceView, limits: Limits) -> Plan:
    """Plan in small steps, so that sessions, elections and requests are not delayed."""
    planning = Planning(seen.brokers, seen.partitions, limits)
    for _ in planning.steps():
        await asyncio.sleep(0)
    return planning.result()


def _is_releasing(image: MetadataImage, node_id: NodeId) -> bool:
    """Return True if partitions are currently moving away from this broker."""
    waiting = (image.topics.partition(key) for key in image.topics.led_by(NO_LEADER))
    return any(
        p is not None
        and p.target_replicas is not None
        and p.move is not None
        and p.move.source == node_id
        for p in waiting
    )
