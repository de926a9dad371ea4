"""One partition of a ShareFetch, with the response so far."""

from uuid import UUID

from penstock.broker.errors import ErrorCode
from penstock.broker.groups.share.partitions.batches import FetchedBatches
from penstock.broker.groups.share.partitions.partition import SharePartition
from penstock.broker.groups.share.partitions.sessions import TopicIdPartition
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.leader_hints import LeaderHints
from penstock.protocol.share_fetch import ShareFetchPartitionResult


class ShareFetchTarget:
    """One partition of the session, with the records found by this call."""

    __slots__ = (
        "batches",
        "is_cold",
        "is_opening",
        "is_waiting",
        "item",
        "limit_bytes",
        "offset",
        "partition",
        "result",
        "share",
    )

    def __init__(self, item: TopicIdPartition) -> None:
        self.item = item
        self.reset()

    def reset(self) -> None:
        self.result = ShareFetchPartitionResult(self.item.partition)
        self.partition: Partition | None = None
        self.share: SharePartition | None = None
        self.batches: FetchedBatches | None = None
        self.offset = 0
        self.limit_bytes = 0
        """Maximum number of bytes to read, except that the first batch is always read."""
        self.is_cold = False
        self.is_waiting = False
        """Whether the share partition has no available records until it notifies its fetches."""
        self.is_opening = False

    def fail(self, code: ErrorCode) -> None:
        self.result.error_code = code


class PendingShareFetch:
    """The response to one call, completed step by step."""

    __slots__ = ("by_topic", "hints", "results")

    def __init__(self, hints: LeaderHints) -> None:
        self.hints = hints
        self.results: dict[TopicIdPartition, ShareFetchPartitionResult] = {}
        self.by_topic: dict[UUID, list[ShareFetchPartitionResult]] = {}
