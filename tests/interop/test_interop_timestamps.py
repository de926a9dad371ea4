"""Kafka 4.2 and Penstock find the same offsets by time if some records have no timestamp."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from penstock.deploy.clients.brokers import Brokers
from penstock.protocol.batch.compression import Compression
from tests.interop.both import Both
from tests.support.bad_batches import store
from tests.support.record_cases import build, record

_NONE = -1
"""Marks a record without a timestamp. Other numbers are milliseconds after the start of
the test.
"""

LOGS: Mapping[str, Sequence[Sequence[int]]] = {
    "none": [[_NONE], [_NONE, _NONE]],
    "none-first": [[_NONE], [10], [5]],
    "none-last": [[10], [20, 5], [_NONE]],
    "none-between": [[10], [_NONE, _NONE], [30], [_NONE], [20]],
    "none-within": [[_NONE, 20], [_NONE], [10, _NONE]],
    "repeated": [[_NONE], [20], [_NONE], [20]],
}
"""The record timestamps of each batch."""

_TIMES = (-3, 0, 1, 5, 10, 15, 20, 30, 31)


def batch(now_ms: int, offsets_ms: Sequence[int]) -> bytes:
    """Return a batch with the correct max timestamp."""
    first, newest = offsets_ms[0], max(offsets_ms)
    base_ms = -1 if first == _NONE else now_ms + first
    data = b"".join(
        record(delta, ms=(-1 if item == _NONE else now_ms + item) - base_ms)
        for delta, item in enumerate(offsets_ms)
    )
    header = {
        "base_timestamp": -1 if first == _NONE else first,
        "max_timestamp": -1 if newest == _NONE else newest,
    }
    return build(data, len(offsets_ms), header, Compression.NONE, now_ms)


async def test_offsets_by_time_skip_records_without_timestamps_as_in_kafka(both: Both) -> None:
    now_ms = time.time_ns() // 1_000_000 - 60_000
    for name, log in LOGS.items():
        await both.create(f"times-{name}")
        for address in both.addresses:
            batches = [batch(now_ms, item) for item in log]
            await asyncio.to_thread(store, address, f"times-{name}", batches)

    def found(address: str) -> dict[tuple[str, int], int]:
        with Brokers(address) as brokers:
            return {
                (name, at): brokers.offsets([(f"times-{name}", 0)], at if at < 0 else now_ms + at)[
                    f"times-{name}", 0
                ]
                for name in LOGS
                for at in _TIMES
            }

    expected, ours = [await asyncio.to_thread(found, address) for address in both.addresses]
    assert {k: (v, ours[k]) for k, v in expected.items() if ours[k] != v} == {}
