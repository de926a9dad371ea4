"""What a run of records changes in the manifest, so that a publication looks only at that.

Invariant: whatever differs in the manifest before and after the records is named; more may be named
than changed. Of a stream whose log was rewritten the offsets are named too, as one stretch: pages
of entries outside of it are the same as before.
Must not look at the image. Cost: about 1 us a record, in the writer's turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from base.ids import Offset, StreamId
from controller.metadata.records import (
    ObjectCommitted,
    PartitionRecord,
    RangeEntry,
    RangesReplaced,
    Record,
    StreamClosed,
    StreamTrimmed,
    TopicRecord,
    TopicRemoved,
    WalEnded,
    WalRecord,
)
from controller.metadata.topics import PartitionKey


@dataclass(slots=True)
class ManifestChanges:
    """everything: nothing is known about what was published before."""

    everything: bool = False
    wals: bool = False
    topic_ids: set[UUID] = field(default_factory=set[UUID])
    """Created or removed."""
    partitions: set[PartitionKey] = field(default_factory=set[PartitionKey])
    stream_ids: set[StreamId] = field(default_factory=set[StreamId])
    rewritten: dict[StreamId, tuple[Offset, Offset]] = field(
        default_factory=dict[StreamId, tuple[Offset, Offset]]
    )

    def note(self, records: Iterable[Record]) -> bool:
        """-> whether there was anything to note."""
        noted = False
        for record in records:
            match record:
                case ObjectCommitted():
                    self.stream_ids.update(part.stream_id for part in record.ranges)
                case WalRecord() | WalEnded():
                    self.wals = True
                case RangesReplaced():
                    self._note_replaced(record.stream_id, record.replacement)
                case StreamClosed() | StreamTrimmed():
                    self.stream_ids.add(record.stream_id)
                case PartitionRecord():
                    self.partitions.add(PartitionKey(record.topic_id, record.partition))
                case TopicRecord() | TopicRemoved():
                    self.topic_ids.add(record.topic_id)
                case _:
                    continue
            noted = True
        return noted

    def _note_replaced(self, stream_id: StreamId, part: RangeEntry) -> None:
        """The replacements of one request hold exactly the offsets of what they replace, so their
        own are all that changes.
        """
        self.stream_ids.add(stream_id)
        low, high = self.rewritten.get(stream_id, (part.start_offset, part.end_offset))
        self.rewritten[stream_id] = (min(low, part.start_offset), max(high, part.end_offset))
