"""Balancing in the active controller: collect the brokers' reports and propose moves. In auto mode,
also make the moves and relieve slow brokers. See docs/design/balancing.md.
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
from penstock.controller.active.writer import Runtime
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
"""How long a broker's report is valid, in ms: five intervals."""
RELIEVED_COUNT: Final = 100
"""Number of partitions that leave a slow broker concurrently."""


class Balancer:
    """The balancer of one active controller epoch.

    Nothing happens before every live broker has reported to this process. There is no round while
    any partition moves. A partition that has moved stays for the cooldown, and a restarted broker
    is left out for a delay. A manager checks every decision again in the writer (`move_leaders`,
    `relieve`). Planning yields often, so that fencing and elections are not delayed.
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
        """Return the brokers that may get partitions.

        The last live broker is never excluded: a slow broker is better than none.
        """
        alive = self._sessions.alive()
        return alive.difference(self._slow.excluded(alive)) if self._config.auto_balance else alive

    @property
    def excluded_count(self) -> int:
        """Return the number of excluded brokers, as last logged. It is 0 without auto mode."""
        return len(self._excluded)

    async def report(
        self, request: lm.ReportLoad, timeout_s: float | None, size_bytes: int, request_id: str
    ) -> m.Reply[Any]:
        """Process a broker's report. Reports of an earlier start of the broker are ignored.

        It changes no metadata, so it runs outside the writer.
        """
        del timeout_s, size_bytes, request_id
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

    async def propose(
        self, request: lm.ProposeMoves, timeout_s: float | None, size_bytes: int, request_id: str
    ) -> m.Reply[Any]:
        """Propose moves to an operator, without cooldown and delay, because the operator can see
        recent moves and starts.
        """
        del timeout_s, size_bytes, request_id
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
        """Run auto mode until cancelled or until the runtime ends. Return immediately without auto
        mode.
        """
        interval_s = self._config.balance_interval_ms / 1_000
        while self._config.auto_balance:
            await asyncio.sleep(interval_s)
            try:
                await self._relieve_slow()
                await self._balance()
            except TimeoutError:
                continue  # the writer is busy; the next round sees the same state

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
        """Move partitions away from slow brokers, some at a time: the next ones after these have
        arrived.
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
        """Log newly excluded brokers and those that are included again."""
        excluded: Mapping[NodeId, str] = (
            self._slow.excluded(self._sessions.alive()) if self._config.auto_balance else {}
        )
        for node_id in excluded.keys() - self._excluded.keys():
            _log.warning("broker_excluded", node_id=node_id, reason=excluded[node_id])
        for node_id in self._excluded.keys() - excluded.keys():
            _log.warning("broker_readmitted", node_id=node_id, was=self._excluded[node_id])
        self._excluded = dict(excluded)

    def _described(self, broker: lm.BrokerLoad, now_ms: int) -> lm.BrokerLoad:
        """Return the load with the session, and with the latencies of a recent report."""
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
    """Return True if moves away from this broker are in progress."""
    waiting = (image.topics.partition(key) for key in image.topics.led_by(NO_LEADER))
    return any(
        p is not None
        and p.target_replicas is not None
        and p.move is not None
        and p.move.source == node_id
        for p in waiting
    )
