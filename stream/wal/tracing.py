"""Port for tracing the write path, implemented by `deploy.node.traces` with OpenTelemetry.

Whether a request is traced is decided once, when it arrives; an untraced request costs one
comparison. The write path never waits for a trace, and no method may raise or block.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.base.ids import WalSequence
from penstock.stream.wal.append import WalAppend


class RequestTrace(Protocol):
    """The trace of one writer request."""

    def appended(self, done: Callable[[Exception | None], None]) -> None:
        """Record that a group of the request was appended.

        done: the callback that was passed to `Storage.append`; it identifies the group.
        """
        ...

    def ended(self, errors: Sequence[str]) -> None:
        """Record that the response was sent, with these errors, if any. Groups of the request may
        still be in flight if the writer does not wait for them.
        """
        ...


class BulkTrace(Protocol):
    """The trace of the PUT of a bulk that contains a traced request. Exactly one method
    is called.
    """

    def written(self, key: str, size_bytes: int) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Tracing(Protocol):
    def begin(self, received_at: float, client: str) -> RequestTrace | None:
        """Return the trace of a request, or None if it is not sampled.

        received_at: event loop time.
        """
        ...

    def put_began(self, sequence: WalSequence, groups: Sequence[WalAppend]) -> BulkTrace | None:
        """Return the trace of a PUT, or None if the bulk does not contain a traced request."""
        ...
