"""The messages of rewriting from outside: a job that is no broker prepares objects, and exchanges
ranges of a data stream for them.

They carry no node and no stream epoch, because such a job owns nothing: the condition of a commit
is the log index itself. Envelope and other limits are those of `controller.api.messages`.
"""

from base.ids import Offset, StreamId
from controller.api.messages import CommitObject, Message

ITEMS_MAX = 1_000
SOURCES_MAX = 10_000
"""About 1 MiB of request."""


class PrepareRewrite(Message, frozen=True, kw_only=True):
    """-> ObjectsPrepared. count at most 1,000. ttl_ms: what is not committed by then is collected;
    1 second to 60 minutes.
    """

    count: int
    ttl_ms: int


class RewriteSource(Message, frozen=True, kw_only=True):
    """An entry of the stream's log index, whole, as the manifest names it."""

    key: str
    start_offset: Offset
    end_offset: Offset


class RewriteItem(Message, frozen=True, kw_only=True):
    """new: a prepared stream object with one range, which holds exactly the offsets of the
    sources.
    """

    new: CommitObject
    sources: list[RewriteSource]


class CommitRewrite(Message, frozen=True, kw_only=True):
    """One transaction of one data stream, in which each item stands by itself -> ItemResults. At
    most 1,000 items, 10,000 sources.
    """

    stream_id: StreamId
    items: list[RewriteItem]
