"""The unit that `Storage.append` adds to the WAL: entries that share a slot, and a callback."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import structlog

from penstock.base.ids import StreamId, WalSequence
from penstock.stream.cache.log_cache import AppendEntry

_log = structlog.get_logger(__name__)

AppendDone: TypeAlias = Callable[[Exception | None], None]
"""Called once, on the event loop: with None when the entries are durable, otherwise with the
error.
"""

WalAppend: TypeAlias = tuple[Sequence[AppendEntry], AppendDone]


class MovedSlot(NamedTuple):
    """A slot whose groups become durable through an upload while the WAL moves."""

    sequence: WalSequence
    runs: Mapping[StreamId, Sequence[AppendEntry]]
    groups: Sequence[WalAppend]


def notify(done: AppendDone, error: Exception | None) -> None:
    """Call `done`. An exception in one writer's callback must not affect later callbacks."""
    try:
        done(error)
    except Exception:  # noqa: BLE001 - one failing caller must not affect the groups after it, which are durable too
        _log.exception("append_callback_failed")
