"""What brokers measured of their parts of moves, for `penstock reassign trace`. In memory of the active controller, nowhere else.

Invariant: never more than `TRACES_MAX` are kept; the oldest go first. Nothing depends on them: they are lost with the process, and a
report that does not arrive is missing, no more. Pure: the time comes in.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from controller.rpc.messages import MoveTiming, MoveTrace, TraceMove
from stream.ids import NodeId

TRACES_MAX: Final = 10_000
"""About 500 bytes each."""


class MoveTraceRing:
    def __init__(self) -> None:
        self._traces: deque[MoveTrace] = deque(maxlen=TRACES_MAX)

    def add(self, node_id: NodeId, items: Sequence[MoveTiming], now_ms: int) -> None:
        self._traces.extend(MoveTrace(node_id=node_id, received_ms=now_ms, timing=item) for item in items)

    def of(self, wanted: TraceMove) -> list[MoveTrace]:
        """Of one partition, oldest first. O(all)."""
        return [trace for trace in self._traces if (trace.timing.topic_id, trace.timing.partition) == (wanted.topic_id, wanted.partition)]
