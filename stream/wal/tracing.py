"""What the write path tells somebody who draws traces of it: a request arrives, lies in a bulk, is
durable, is answered.

Invariants: whether a request is traced is decided once, when it arrives, before anything is built;
who is not traced costs one comparison. Nobody waits for a trace, and nothing here may raise or
block. `Storage.tracing` is None where nobody wants traces.
Source: OpenTelemetry's tracing API, of which nothing is imported: `deploy.node.traces` implements
this port.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from base.ids import WalSequence
from stream.wal.append import WalAppend


class RequestTrace(Protocol):
    """One request of a writer."""

    def appended(self, done: Callable[[Exception | None], None]) -> None:
        """A group of it was taken. done: as it was given to `Storage.append`; it names the
        group.
        """
        ...

    def ended(self, errors: Sequence[str]) -> None:
        """Answered; with these errors, if any. Groups may still be on their way if the writer did
        not want to know.
        """
        ...


class BulkTrace(Protocol):
    """The PUT of one bulk with a traced request in it. Exactly one of its methods is called."""

    def written(self, key: str, size_bytes: int) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Tracing(Protocol):
    def begin(self, received_at: float, client: str) -> RequestTrace | None:
        """None: this request is not traced. received_at: of the loop's clock."""
        ...

    def put_began(self, sequence: WalSequence, groups: Sequence[WalAppend]) -> BulkTrace | None:
        """None: no traced request is in it."""
        ...
