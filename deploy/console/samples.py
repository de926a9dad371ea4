"""Data of the overview charts: one sample every two seconds, of about 200 bytes.

Invariant: pure.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.deploy.top.view import TopView

INTERVAL_S: Final = 2.0
"""Interval of samples, which is also the interval at which brokers report their loads."""

SAMPLES_MAX: Final = 450
"""Number of samples to keep, which cover 15 minutes."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment. Unknown values are None. Rates are per second; append_*_ms are the
    values of the slowest broker.
    """

    at_ms: int
    bytes_in: int | None
    bytes_out: int | None
    requests: int | None
    records: float | None
    append_p50_ms: float | None
    append_p99_ms: float | None
    put: float | None
    get: float | None
    list_: float | None = msgspec.field(name="list")
    usd_month: float | None


_NAMES: Final = tuple(field.encode_name for field in msgspec.structs.fields(Sample))


def sample_of(view: TopView, at_ms: int, records_s: float | None, *, has_loads: bool) -> Sample:
    """Return the sample of a measurement. records_s: records per second written to all topics.
    has_loads: whether the loads in the view are current.
    """
    nodes = [node for node in view.cluster.nodes if not node.fenced and has_loads]
    requests = view.cost.requests if has_loads else None
    return Sample(
        at_ms=at_ms,
        bytes_in=_total([node.bytes_in_s for node in nodes]),
        bytes_out=_total([node.bytes_out_s for node in nodes]),
        requests=_total([node.requests_s for node in nodes]),
        records=records_s,
        append_p50_ms=_slowest([node.append_p50_ms for node in nodes]),
        append_p99_ms=_slowest([node.append_p99_ms for node in nodes]),
        put=None if requests is None else requests.put_s,
        get=None if requests is None else requests.get_s,
        list_=None if requests is None else requests.list_s,
        usd_month=None if requests is None else view.cost.requests_usd_month,
    )


def last_known(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the last known value of each field, or None if there is none."""
    found: dict[str, Any] = dict.fromkeys(_NAMES)
    for sample in reversed(samples):
        found = {
            name: value if found[name] is None else found[name]
            for name, value in msgspec.to_builtins(sample).items()
        }
        if None not in found.values():
            break
    return found


def _total(values: list[int | None]) -> int | None:
    """Return the sum, or None if any part is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _slowest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
