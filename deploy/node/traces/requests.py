"""Spans of produce requests and of the PUTs that make them durable.

docs/reference/traces.md shows the spans of a request. Whether to trace a request is decided before
all other work. Groups that never reach a PUT are dropped with their request. Used only from the
event loop.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from penstock.base.ids import WalSequence

if TYPE_CHECKING:
    from penstock.stream.wal.append import AppendDone, WalAppend


class _Waiting(NamedTuple):
    """A traced group that waits in a bulk."""

    request: "_Request"
    since_ns: int


class RequestTracing:
    """Traces selected requests. is_chosen: returns whether to trace a request; called for each."""

    def __init__(self, tracer: Tracer, is_chosen: Callable[[], bool]) -> None:
        self._tracer = tracer
        self._is_chosen = is_chosen
        self._waiting: dict[AppendDone, _Waiting] = {}

    def begin(self, received_at: float, client: str) -> "_Request | None":
        if not self._is_chosen():
            return None
        waited_s = asyncio.get_running_loop().time() - received_at
        return _Request(self._tracer, self._waiting, time.time_ns() - int(waited_s * 1e9), client)

    def put_began(self, sequence: WalSequence, groups: "Sequence[WalAppend]") -> "_Put | None":
        if not self._waiting:
            return None
        waiting = [
            found for _, done in groups if (found := self._waiting.pop(done, None)) is not None
        ]
        return _Put(self._tracer, sequence, len(groups), waiting) if waiting else None


class _Request:
    def __init__(
        self, tracer: Tracer, waiting: "dict[AppendDone, _Waiting]", received_ns: int, client: str
    ) -> None:
        self._tracer = tracer
        self._waiting = waiting
        self._groups: list[AppendDone] = []
        self._received_ns = received_ns
        self.durable_ns = 0
        self.span = tracer.start_span(
            "produce",
            kind=SpanKind.SERVER,
            start_time=received_ns,
            attributes={"messaging.system": "kafka", "messaging.client.id": client},
        )

    def appended(self, done: "AppendDone") -> None:
        now_ns = time.time_ns()
        if not self._groups:
            self.part("append", self._received_ns, now_ns)
        self._groups.append(done)
        self._waiting[done] = _Waiting(self, now_ns)

    def ended(self, errors: Sequence[str]) -> None:
        now_ns = time.time_ns()
        for done in self._groups:
            self._waiting.pop(done, None)
        if self.durable_ns:
            self.part("ack", self.durable_ns, now_ns)
        if errors:
            self.span.set_status(Status(StatusCode.ERROR, ", ".join(errors)))
        self.span.end(now_ns)

    def part(self, name: str, start_ns: int, end_ns: int, link: Span | None = None) -> None:
        links = () if link is None else (Link(link.get_span_context()),)
        self._tracer.start_span(
            name, set_span_in_context(self.span), start_time=start_ns, links=links
        ).end(end_ns)


class _Put:
    def __init__(
        self, tracer: Tracer, sequence: WalSequence, groups_count: int, waiting: Sequence[_Waiting]
    ) -> None:
        self._requests = [item.request for item in waiting]
        now_ns = time.time_ns()
        first, *others = self._requests
        self._span = tracer.start_span(
            "wal put",
            set_span_in_context(first.span),
            kind=SpanKind.CLIENT,
            start_time=now_ns,
            attributes={"penstock.wal.slot": sequence, "penstock.wal.groups": groups_count},
            links=[Link(request.span.get_span_context()) for request in others],
        )
        for item in waiting:
            item.request.part("wal bulk", item.since_ns, now_ns, self._span)

    def written(self, key: str, size_bytes: int) -> None:
        now_ns = time.time_ns()
        self._span.set_attributes({"penstock.object.key": key, "penstock.object.bytes": size_bytes})
        self._span.end(now_ns)
        for request in self._requests:
            request.durable_ns = now_ns

    def failed(self, error: BaseException) -> None:
        self._span.set_status(Status(StatusCode.ERROR, repr(error)))
        self._span.end(time.time_ns())
