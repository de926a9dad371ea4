"""Define the port through which the write path reports to a tracer: a request arrives, lies in a
bulk, is durable, is answered.

Invariants: whether a request is traced is decided once, when it arrives, before anything is built;
a request that is not traced costs one comparison. The write path never waits for a trace, and no
method may raise or block. `Storage.tracing` is None without a tracer.
Source: OpenTelemetry's tracing API, of which nothing is imported: `deploy.node.traces` implements
this port.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.base.ids import WalSequence
from penstock.stream.wal.append import WalAppend


class RequestTrace(Protocol):
    """The trace of one request of a writer."""

    def appended(self, done: Callable[[Exception | None], None]) -> None:
        """Note that a group of the request was appended.

        done: the callback that was passed to `Storage.append`; it identifies the group.
        """
        ...

    def ended(self, errors: Sequence[str]) -> None:
        """Note that the request was answered with these errors, if any. Its groups
        may still be in flight if the writer does not wait for them.
        """
        ...


class BulkTrace(Protocol):
    """The trace of the PUT of one bulk with a traced request in it. Exactly one method is
    called.
    """

    def written(self, key: str, size_bytes: int) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Tracing(Protocol):
    def begin(self, received_at: float, client: str) -> RequestTrace | None:
        """Return the trace of a request, or None if it is not traced.

        received_at: a time of the loop's clock.
        """
        ...

    def put_began(self, sequence: WalSequence, groups: Sequence[WalAppend]) -> BulkTrace | None:
        """Return the trace of a PUT, or None if the bulk has no traced request."""
        ...
