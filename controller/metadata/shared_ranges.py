"""Find object ranges that several logs refer to: ranges of forks, snapshots, deleted topics and
retained deleted records.

An object with several streams is not shared for that reason alone. A range is shared only if
another log also refers to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.base.ids import ObjectId, StreamId
from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.streams import StreamsImage, StreamState
from penstock.stream.ports import OWN_STREAM


@dataclass(slots=True)
class SharedRanges:
    """The logs that refer to each range. First call `learn` with each stream of
    `StreamsImage.sharing`.
    """

    _of: dict[tuple[ObjectId, StreamId], dict[StreamId, int]] = field(
        default_factory=dict[tuple[ObjectId, StreamId], dict[StreamId, int]]
    )
    """The size of the range in each referring stream, by the object and the stream under which the
    object contains the range.
    """

    def learn(self, state: StreamState) -> Iterator[int]:
        """Record the ranges that the stream refers to. Yield the number of processed entries, so
        that the caller can yield to the event loop.
        """
        forked = (entry for entry in state.entries if entry.stored_stream_id != OWN_STREAM)
        for number, entry in enumerate((*state.kept_entries, *forked), 1):
            users = self._of.setdefault((entry.object_id, _stored(entry, state)), {})
            users[state.stream_id] = max(users.get(state.stream_id, 0), entry.size_bytes)
            yield number

    def shared_bytes(self, state: StreamState, streams: StreamsImage) -> int:
        """Return the number of bytes in the log that another log also refers to."""
        return sum(self._shared(entry, state, streams) for entry in state.entries)

    def _shared(self, entry: LogEntry, state: StreamState, streams: StreamsImage) -> int:
        stored = _stored(entry, state)
        users = self._of.get((entry.object_id, stored), {})
        found = [size_bytes for user, size_bytes in users.items() if user != state.stream_id]
        source = None if stored == state.stream_id else streams.get(stored)
        if source is not None:
            found += [
                its.size_bytes
                for its in source.find(entry.start_offset, entry.end_offset, len(source.entries))
                if its.object_id == entry.object_id
            ]
        return min(entry.size_bytes, max(found, default=0))


def _stored(entry: LogEntry, state: StreamState) -> StreamId:
    return state.stream_id if entry.stored_stream_id == OWN_STREAM else entry.stored_stream_id
