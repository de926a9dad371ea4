"""Create the spans of a planned move: one trace with its six steps, across controller, source and
target.
"""

from collections.abc import Sequence
from typing import Final

from opentelemetry.trace import SpanKind, Tracer, set_span_in_context

from penstock.controller.api.messages import MoveTrace
from penstock.controller.metadata.records import PartitionRecord
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.admin.reassign.trace import view_move

_NS_PER_MS: Final = 1_000_000


# The active controller creates it when both brokers have reported their measurements
# (`controller.active.move_traces`). As in `penstock reassign trace`, the steps follow each other
# from the controller's change, and no two clocks are compared.
class MoveSpans:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def moved(self, topic: str, record: PartitionRecord, traces: Sequence[MoveTrace]) -> None:
        """Create the trace; see `controller.active.move_traces.MoveListener`."""
        view = view_move(Key(topic, record.partition), record, traces)
        if view is None or view.total_ms is None:
            return
        began_ns = view.started_ms * _NS_PER_MS
        attributes: dict[str, str | int] = {
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(record.partition),
            "penstock.move.source": view.source,
            "penstock.move.target": view.target,
            "penstock.leader.epoch": view.leader_epoch,
        }
        root = self._tracer.start_span(
            "move", kind=SpanKind.INTERNAL, start_time=began_ns, attributes=attributes
        )
        at_ns = began_ns
        for step in view.steps:
            end_ns = at_ns + int((step.took_ms or 0.0) * _NS_PER_MS)
            named: dict[str, str | int] = {
                "penstock.move.step": step.number,
                "penstock.node": step.by,
            }
            self._tracer.start_span(
                f"{step.by}: {step.what}",
                set_span_in_context(root),
                start_time=at_ns,
                attributes=named,
            ).end(end_ns)
            at_ns = end_ns
        root.end(at_ns)
