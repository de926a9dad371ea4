"""Messages for bulk rewrites: a job outside the brokers prepares objects and replaces ranges of a
data stream with these objects.

The messages contain no node and no stream epoch, because the job does not own the stream. A commit
succeeds only if the log index still contains the sources.
"""

from penstock.base.ids import Offset, StreamId
from penstock.controller.api.messages import CommitObject, Message

ITEMS_MAX = 1_000
SOURCES_MAX = 10_000
"""Maximum number of sources in a request, where 10,000 take about 1 MiB."""


class PrepareRewrite(Message, frozen=True, kw_only=True):
    """Prepare objects. count: at most 1,000. ttl_ms: 1 second to 60 minutes. Objects that are not
    committed within this time are deleted. Reply: ObjectsPrepared.
    """

    count: int
    ttl_ms: int


class RewriteSource(Message, frozen=True, kw_only=True):
    """One whole entry of the stream's log index, as listed in the manifest."""

    key: str
    start_offset: Offset
    end_offset: Offset


class RewriteItem(Message, frozen=True, kw_only=True):
    """Replaces sources with a new object. new: a prepared stream object with one range, which
    covers the same offsets as the sources.
    """

    new: CommitObject
    sources: list[RewriteSource]


class CommitRewrite(Message, frozen=True, kw_only=True):
    """Replace ranges of one data stream in one transaction. Each item succeeds or fails separately.
    A request contains at most 1,000 items and 10,000 sources. Reply: ItemResults.

    is_ordered: whether to reject all items after a rejected one. Log compaction needs this, because
    a tombstone must not be removed before the earlier records that it deletes. tombstones_kept_ms:
    see `CommitObjects`; None if no records are removed.
    """

    stream_id: StreamId
    items: list[RewriteItem]
    is_ordered: bool = False
    tombstones_kept_ms: int | None = None
