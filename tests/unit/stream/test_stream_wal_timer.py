"""The WAL sets its timer on the event loop of brokers."""

from random import Random
from typing import Any

import pytest
import uvloop

from penstock.base.ids import Millis, NodeEpoch, NodeId
from penstock.objectstore.memory import MemoryStore
from penstock.stream.config import StreamConfig
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from penstock.stream.wal.wal import Wal


class DueAtOnce:
    """A core whose deadline is almost due."""

    def next_bulk(self, _: float) -> None:
        return None

    def wake_at(self, now: float) -> float:
        return now + 0.0001


def test_the_timer_can_be_checked_again_while_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop replaces such a timer by a plain handle."""

    async def look_twice() -> None:
        def nothing(*_: Any) -> None:
            return None

        identity = BrokerIncarnation(NodeId(1), NodeEpoch(1))
        wal = Wal(
            MemoryStore(),
            identity,
            StreamConfig(),
            now_ms=lambda: Millis(0),
            rng=Random(1),
            on_durable=nothing,
            on_failed=nothing,
            wal_store=IN_STORE,
        )
        monkeypatch.setattr(wal, "_core", DueAtOnce())
        wal._poll()
        wal._poll()

    uvloop.run(look_twice())
