"""State of one open stream in this process: the three ends of its log, and whether it accepts
appends.
"""

from collections.abc import Mapping, Sequence

from penstock.base.ids import Offset, StreamEpoch, StreamId
from penstock.stream.cache.log_cache import AppendEntry
from penstock.stream.errors import StreamFenced, StreamNotOpened
from penstock.stream.ports import OpenedStream


class StreamHandle:
    """The state of one open stream, valid until it is closed. `Storage.open_streams` returns a new
    handle for each opening.

    `next` is the end of appended data, `confirmed` of durable and acknowledged data, and
    `committed` of data in the metadata: committed <= confirmed <= next. None of them decreases,
    except `next` when a group is rejected. Only `stream.storage` and its components change them.
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


def refusal(stream_id: StreamId, handle: StreamHandle | None) -> StreamNotOpened | StreamFenced:
    """Return the error for an append to a stream that does not accept appends."""
    if handle is None or not handle.fenced:
        return StreamNotOpened(stream_id)
    return StreamFenced(stream_id, "another broker opened it")


def restore_next_offsets(
    handles: Mapping[StreamId, StreamHandle], entries: Sequence[AppendEntry]
) -> None:
    """Restore the `next` offsets from before a rejected group."""
    for entry in reversed(entries):
        handles[entry.stream_id].next_offset = entry.base_offset
