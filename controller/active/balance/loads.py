"""Partition rates reported by brokers, kept only in the memory of the active controller. Pure;
times are in monotonic milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.ids import NodeEpoch, NodeId, StreamEpoch
from penstock.controller.api.load_messages import (
    PARTITIONS_PER_REPORT_MAX,
    Load,
    PartitionLoad,
    ProblemLog,
    ReportLoad,
    StoreRequests,
)
from penstock.controller.metadata.topics import PartitionKey

NO_LOAD: Final = Load(0, 0, 0)
TRUSTED_MS: Final = 3_000
KEPT_MS: Final = 15_000
"""How long the last rates of a partition are valid if no broker reports them, because the partition
is moving or its leader is silent.
"""


@dataclass(slots=True)
class _Known:
    load: Load
    is_settled: bool
    leader_epoch: StreamEpoch
    received_ms: int


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The last report of one broker. `began_ms` is the arrival time of the first report since the
    broker's start.

    `response_ms` is the median time from append to acknowledgment, including pending appends, or
    None if there were no appends.
    """

    node_epoch: NodeEpoch
    began_ms: int
    received_ms: int
    rest_each: Load
    response_ms: float | None
    response_p99_ms: float | None
    loop_lag_ms: float
    store: StoreRequests | None
    problems: ProblemLog | None


class LoadBook:
    """The loads that brokers have reported. A report is valid for `fresh_ms`.

    A report never replaces one from a later leader epoch. The rates of a new leader replace its
    predecessor's only after it has measured the partition for `TRUSTED_MS`, because clients process
    a backlog in the first seconds after a move.
    """

    def __init__(self, fresh_ms: int) -> None:
        self._fresh_ms = fresh_ms
        self._reports: dict[NodeId, BrokerReport] = {}
        self._partitions: dict[PartitionKey, _Known] = {}
        self._swept_ms = 0

    def add(self, report: ReportLoad, now_ms: int) -> None:
        rest, count = report.rest, max(report.rest_count, 1)
        before = self._reports.get(report.node_id)
        is_same = before is not None and before.node_epoch == report.node_epoch
        self._reports[report.node_id] = BrokerReport(
            report.node_epoch,
            before.began_ms if before is not None and is_same else now_ms,
            now_ms,
            Load(rest.bytes_in // count, rest.bytes_out // count, rest.requests // count),
            report.append_p50_ms,
            report.append_p99_ms,
            report.loop_lag_ms,
            report.store,
            report.problems,
        )
        self._take(report.items[:PARTITIONS_PER_REPORT_MAX], now_ms)
        if now_ms - self._swept_ms >= KEPT_MS:
            self._sweep(now_ms)

    def report_of(self, node_id: NodeId, now_ms: int) -> BrokerReport | None:
        """Return the broker's report, or None if there is none or it is no longer valid."""
        report = self._reports.get(node_id)
        return (
            report if report is not None and now_ms - report.received_ms <= self._fresh_ms else None
        )

    def latencies(self, now_ms: int) -> dict[NodeId, float]:
        """Return the append latencies, in ms, of the brokers that have reported them."""
        found = {node_id: self.report_of(node_id, now_ms) for node_id in sorted(self._reports)}
        return {
            node_id: report.response_ms
            for node_id, report in found.items()
            if report is not None and report.response_ms is not None
        }

    def load_of(self, key: PartitionKey, leader: NodeId, now_ms: int) -> Load:
        """Return the reported rates of a partition. If there are none, return the average of the
        leader's partitions that are not reported individually.
        """
        known = self._partitions.get(key)
        if known is not None and now_ms - known.received_ms <= KEPT_MS:
            return known.load
        report = self._reports.get(leader)
        return NO_LOAD if report is None else report.rest_each

    def is_settled(self, key: PartitionKey) -> bool:
        """Return False if no leader has measured the partition for long enough."""
        known = self._partitions.get(key)
        return known is None or known.is_settled

    def _take(self, items: Sequence[PartitionLoad], now_ms: int) -> None:
        for item in items:
            key = PartitionKey(item.topic_id, item.partition)
            known = self._partitions.get(key)
            if known is not None and known.leader_epoch > item.leader_epoch:
                continue
            if (
                known is not None
                and known.leader_epoch < item.leader_epoch
                and item.observed_ms < TRUSTED_MS
            ):
                known.received_ms = now_ms
                continue
            self._partitions[key] = _Known(
                item.load, item.observed_ms >= TRUSTED_MS, item.leader_epoch, now_ms
            )

    def _sweep(self, now_ms: int) -> None:
        self._swept_ms = now_ms
        self._partitions = {
            key: known
            for key, known in self._partitions.items()
            if now_ms - known.received_ms <= KEPT_MS
        }
        self._reports = {
            node_id: report
            for node_id, report in self._reports.items()
            if now_ms - report.received_ms <= KEPT_MS
        }
