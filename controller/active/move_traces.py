"""Keep the measurements that brokers report about partition moves in the memory of the active
controller, for `penstock reassign trace`. Pure.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from penstock.base.ids import NodeId
from penstock.controller.api.messages import MoveTiming, MoveTrace, TraceMove
from penstock.controller.metadata.records import PartitionRecord

TRACES_MAX: Final = 10_000
"""Maximum number of traces, of about 500 bytes each."""


_HALVES_MAX: Final = 1_000

MoveListener: TypeAlias = Callable[[str, PartitionRecord, Sequence[MoveTrace]], None]
"""Called with the topic name, the partition after the move, and the reports of the source and the
target. Must not block or raise.
"""


class MovePairs:
    """Matches the two reports of each move. If the source has died, it reports nothing, so the move
    is dropped.
    """

    def __init__(self) -> None:
        self._halves: dict[tuple[UUID, int, int], MoveTrace] = {}

    def add(
        self, node_id: NodeId, items: Sequence[MoveTiming], now_ms: int
    ) -> list[list[MoveTrace]]:
        """Add reports. Return the complete pairs, each as source and target."""
        pairs: list[list[MoveTrace]] = []
        for item in items:
            key = item.topic_id, item.partition, item.leader_epoch + item.gave_up
            this = MoveTrace(node_id=node_id, received_ms=now_ms, timing=item)
            other = self._halves.pop(key, None)
            if other is not None and other.timing.gave_up != item.gave_up:
                pairs.append([this, other] if item.gave_up else [other, this])
            else:
                self._halves[key] = this
        while len(self._halves) > _HALVES_MAX:
            del self._halves[next(iter(self._halves))]
        return pairs


class MoveTraceRing:
    def __init__(self) -> None:
        self._traces: deque[MoveTrace] = deque(maxlen=TRACES_MAX)

    def add(self, node_id: NodeId, items: Sequence[MoveTiming], now_ms: int) -> None:
        self._traces.extend(
            MoveTrace(node_id=node_id, received_ms=now_ms, timing=item) for item in items
        )

    def of(self, wanted: TraceMove) -> list[MoveTrace]:
        """Return the traces of one partition, oldest first. This takes O(all traces)."""
        return [
            trace
            for trace in self._traces
            if (trace.timing.topic_id, trace.timing.partition)
            == (wanted.topic_id, wanted.partition)
        ]
