"""What brokers measured of their parts of moves, for `penstock reassign trace`. In memory of the
active controller, nowhere else.

Invariant: never more than `TRACES_MAX` are kept; the oldest go first. Nothing depends on them: they
are lost with the process, and a report that does not arrive is missing, no more. Pure: the time
comes in.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from base.ids import NodeId
from controller.api.messages import MoveTiming, MoveTrace, TraceMove
from controller.metadata.records import PartitionRecord

TRACES_MAX: Final = 10_000
"""About 500 bytes each."""


_HALVES_MAX: Final = 1_000

MoveListener: TypeAlias = Callable[[str, PartitionRecord, Sequence[MoveTrace]], None]
"""(topic name, the partition after the move, what source and target reported). Must not block or
raise.
"""


class MovePairs:
    """Finds the two reports of each move. A source that died reports nothing: its move has no pair,
    and is forgotten.
    """

    def __init__(self) -> None:
        self._halves: dict[tuple[UUID, int, int], MoveTrace] = {}

    def add(
        self, node_id: NodeId, items: Sequence[MoveTiming], now_ms: int
    ) -> list[list[MoveTrace]]:
        """Pairs that are complete now: source, target."""
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
        """Of one partition, oldest first. O(all)."""
        return [
            trace
            for trace in self._traces
            if (trace.timing.topic_id, trace.timing.partition)
            == (wanted.topic_id, wanted.partition)
        ]
