"""Patch metric counting out of a running process and back in, for `benchmarks.metering`, in the
server's process.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.base.histogram import LatencyHistogram
from penstock.broker.network.request_meter import RequestMeter
from penstock.objectstore.metered import MeteredStore
from penstock.objectstore.ports import Body


def _nothing(*_: object, **__: object) -> None:
    """Replaces a counting method."""


async def _put(self: Any, key: str, body: Body) -> str:  # noqa: ANN401 - a method of MeteredStore, without its meter
    return str(await self._store.put(key, body))


async def _put_if_absent(self: Any, key: str, body: Body) -> str:  # noqa: ANN401
    return str(await self._store.put_if_absent(key, body))


_COUNTING: Final[Mapping[tuple[type, str], Any]] = {
    (RequestMeter, "responded"): _nothing,
    (RequestMeter, "failed"): _nothing,
    (LatencyHistogram, "observe"): _nothing,
    (MeteredStore, "put"): _put,
    (MeteredStore, "put_if_absent"): _put_if_absent,
}
_ORIGINALS: Final = {(owner, name): getattr(owner, name) for owner, name in _COUNTING}


def set_counting(counts: bool) -> None:
    """Patch counting out of this process, or back in."""
    for (owner, name), bare in _COUNTING.items():
        setattr(owner, name, _ORIGINALS[owner, name] if counts else bare)
