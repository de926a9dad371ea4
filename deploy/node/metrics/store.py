"""Read the counters of object store requests as metrics, for every role."""

import re
from collections.abc import Iterator
from typing import Final

from penstock.deploy.node.metrics import table
from penstock.deploy.node.metrics.exposition import Reading
from penstock.objectstore.metered import OperationStats, StoreMeter

_OUTCOMES: Final = {
    "ObjectNotFound": "not_found",
    "PreconditionFailed": "precondition_failed",
    "CancelledError": "cancelled",
}
"""Outcomes that are not failures of the store. Other outcomes are named after their error class."""
_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")


def read_wal_store(calls: StoreMeter) -> Iterator[Reading]:
    for operation, stats in calls.snapshot().operations.items():
        for outcome, count in _outcomes(stats):
            yield table.WAL_STORE_CALLS, (operation, outcome), count
        yield table.WAL_STORE_LATENCY, (operation,), stats.latencies


def _outcomes(stats: OperationStats) -> Iterator[tuple[str, int]]:
    yield "ok", stats.count - sum(stats.errors.values())
    for error, count in stats.errors.items():
        yield _OUTCOMES.get(error) or _WORD.sub("_", error).lower(), count


def read_store(meter: StoreMeter) -> Iterator[Reading]:
    for operation, stats in meter.snapshot().operations.items():
        for outcome, count in _outcomes(stats):
            yield table.STORE_REQUESTS, (operation, outcome), count
        yield table.STORE_LATENCY, (operation,), stats.latencies
        if stats.read_bytes:
            yield table.STORE_READ, (operation,), stats.read_bytes
        if stats.written_bytes:
            yield table.STORE_WRITTEN, (operation,), stats.written_bytes
