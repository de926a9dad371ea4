"""Track one open stream of this process: the three ends of its log, and whether it accepts appends.

Invariant: committed <= confirmed <= next, and none of them moves back, except `next` when a group
is refused. `next` is the end of what was appended, `confirmed` of what is durable and acknowledged,
`committed` of what the controller has. Only `stream.storage` and its parts write them.
Source: AutoMQ `S3Stream`.
"""

from penstock.base.ids import Offset, StreamEpoch, StreamId
from penstock.stream.ports import OpenedStream


class StreamHandle:
    """The state of one open stream. `Storage.open_streams` returns it, and it is valid until
    closed.

    A stream that is opened again gets a new handle.
    """

    __slots__ = (
        "accepting",
        "committed_offset",
        "confirmed_offset",
        "epoch",
        "fenced",
        "next_offset",
        "start_offset",
        "stream_id",
    )

    def __init__(self, opened: OpenedStream) -> None:
        self.stream_id: StreamId = opened.stream_id
        self.epoch: StreamEpoch = opened.epoch
        self.start_offset: Offset = opened.start_offset
        end = max(opened.end_offset, opened.start_offset)
        self.committed_offset: Offset = end
        self.confirmed_offset: Offset = end
        self.next_offset: Offset = end
        self.accepting = True
        """False as soon as closing begins."""
        self.fenced = False

    def check_invariants(self) -> None:
        assert self.committed_offset <= self.confirmed_offset <= self.next_offset, repr(self)
        assert self.start_offset <= self.confirmed_offset, repr(self)

    def __repr__(self) -> str:
        return (
            f"StreamHandle(stream {self.stream_id} epoch {self.epoch}: start {self.start_offset},"
            f" committed {self.committed_offset}, confirmed {self.confirmed_offset}, next"
            f" {self.next_offset}, accepting {self.accepting}, fenced {self.fenced})"
        )
