"""Messages of a bulk rewrite: a job outside the brokers prepares objects and replaces ranges of a
data stream with them.

They contain no node and no stream epoch, because such a job owns nothing: a commit succeeds only if
the log index still contains the sources.
"""

from penstock.base.ids import Offset, StreamId
from penstock.controller.api.messages import CommitObject, Message

ITEMS_MAX = 1_000
SOURCES_MAX = 10_000
"""10,000 sources are about 1 MiB of request."""


class PrepareRewrite(Message, frozen=True, kw_only=True):
    """Prepare objects. count: at most 1,000. ttl_ms: 1 second to 60 minutes, after which objects
    that are not committed are deleted. -> ObjectsPrepared.
    """

    count: int
    ttl_ms: int


class RewriteSource(Message, frozen=True, kw_only=True):
    """One whole entry of the stream's log index, as in the manifest."""

    key: str
    start_offset: Offset
    end_offset: Offset


class RewriteItem(Message, frozen=True, kw_only=True):
    """Replace sources with a new object. new: a prepared stream object with one range that has
    exactly the offsets of the sources.
    """

    new: CommitObject
    sources: list[RewriteSource]


class CommitRewrite(Message, frozen=True, kw_only=True):
    """Replace ranges of one data stream in one transaction; each item succeeds or fails separately.
    At most 1,000 items and 10,000 sources. -> ItemResults.

    is_ordered: reject all items after a rejected one. Log compaction needs this: a tombstone may
    only be removed after the earlier records that it deletes.
    """

    stream_id: StreamId
    items: list[RewriteItem]
    is_ordered: bool = False
