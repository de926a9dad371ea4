"""Report load and latencies to the controller every few seconds, for balancing and `penstock
doctor`.

At most one report is in flight, and lost reports are not resent. A broker that the controller has
excluded for slowness has no appends to measure, so it writes one small object per interval instead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from penstock.base.ids import StreamId
from penstock.base.yielding import in_turns
from penstock.broker.background.store_rates import StoreRates
from penstock.broker.partition.load_meter import LoadMeter
from penstock.broker.partition.manager import PartitionManager
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.load_messages import (
    ERROR_CHARS_MAX,
    PROBLEMS_PER_REPORT_MAX,
    UNTUNED_PER_REPORT_MAX,
    DamagedObject,
    ProblemLog,
    ReportLoad,
    UntunedClient,
)
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.metered import StoreStats
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.read.damage import DamageLog

_log = structlog.get_logger(__name__)
_TIMEOUT_S: Final = 5.0
_LAG_INTERVAL_S: Final = 0.1
"""Interval for sampling the event loop lag. Each second of sampling costs 20 us of CPU."""


class LoadReporter:
    """Sends the load reports of one broker.

    probe: writes a small object. Its duration is reported as the append latency while there are no
    appends.
    """

    def __init__(
        self,
        me: BrokerIncarnation,
        client: ControllerClient,
        partitions: PartitionManager,
        probe: Callable[[], Awaitable[None]],
        *,
        interval_s: float,
        store_stats: Callable[[], StoreStats] | None = None,
        damage: DamageLog | None = None,
    ) -> None:
        """damage: damaged objects found by reads on this broker."""
        self._me = me
        self._client = client
        self._partitions = partitions
        self._probe = probe
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._meter = LoadMeter(self._loop.time())
        self._is_excluded = False
        self.rewrite: tuple[StreamId, ...] = ()
        """Closed streams whose ranges in WAL stores this broker must rewrite."""
        self._lag_s = 0.0
        self._store_stats = store_stats
        self._requests = StoreRates(self._loop.time(), store_stats() if store_stats else None)
        self._damage = DamageLog() if damage is None else damage

    async def run(self) -> None:
        """Send reports until cancelled. The first one is sent immediately, because balancing starts
        only after all brokers have reported.
        """
        while True:
            await self._report()
            await self._wait()

    async def _wait(self) -> None:
        loop = self._loop
        end = loop.time() + self._interval_s
        while (now := loop.time()) < end:
            due = min(now + _LAG_INTERVAL_S, end)
            await asyncio.sleep(due - now)
            self._lag_s = max(self._lag_s, loop.time() - due)

    async def _report(self) -> None:
        response = self._partitions.append_times.take(self._loop.time())
        if response is None and self._is_excluded:
            response = await self._time_store_write()
        items, rest, rest_count = await in_turns(
            self._meter.sample(list(self._partitions), self._loop.time())
        )
        self._judge_producers()
        lag_s, self._lag_s = self._lag_s, 0.0
        report = ReportLoad(
            node_id=self._me.node_id,
            node_epoch=self._me.node_epoch,
            items=items,
            rest=rest,
            rest_count=rest_count,
            append_p50_ms=response[0] if response else None,
            append_p99_ms=response[1] if response else None,
            loop_lag_ms=lag_s * 1_000,
            store=self._requests.sample(self._store_stats(), self._loop.time())
            if self._store_stats
            else None,
            problems=self._problems(),
        )
        try:
            reply = await self._client.report_load(report, timeout_s=_TIMEOUT_S)
            self._is_excluded, self.rewrite = reply.excluded, reply.rewrite
        except (TimeoutError, ControllerError) as error:
            self.rewrite = ()
            _log.info("load_report_failed", error=str(error))

    def _problems(self) -> ProblemLog | None:
        now = self._loop.time()
        failing, damaged = self._partitions.failing(), self._damage.listed(now)
        untuned = self._partitions.producer_watch.listed(now)
        if not failing and not damaged and not untuned:
            return None
        return ProblemLog(
            failing=tuple(failing[:PROBLEMS_PER_REPORT_MAX]),
            failing_count=len(failing),
            damaged=tuple(
                DamagedObject(
                    key=item.key,
                    kind=item.kind,
                    reads=item.count,
                    for_ms=round((now - item.first_s) * 1_000),
                    error=item.what[:ERROR_CHARS_MAX],
                )
                for item in damaged[:PROBLEMS_PER_REPORT_MAX]
            ),
            damaged_count=len(damaged),
            untuned=tuple(
                UntunedClient(
                    client_id=item.client_id,
                    host=item.host,
                    settings=item.advice.settings,
                    reason=item.advice.reason,
                    for_ms=round((now - item.since_s) * 1_000),
                )
                for item in untuned[-UNTUNED_PER_REPORT_MAX:]
            ),
        )

    def _judge_producers(self) -> None:
        """Log each client whose settings limit its throughput, but only once per client."""
        for client in self._partitions.producer_watch.judge(self._loop.time()):
            _log.warning(
                "producer_untuned",
                client_id=client.client_id,
                host=client.host,
                settings=client.advice.settings,
                reason=client.advice.reason,
            )

    async def _time_store_write(self) -> tuple[float, float]:
        began = self._loop.time()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._probe()
        except (TimeoutError, ObjectStoreError):
            return _TIMEOUT_S * 1_000, _TIMEOUT_S * 1_000
        took_ms = (self._loop.time() - began) * 1_000
        return took_ms, took_ms
