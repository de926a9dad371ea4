"""Errors of manifest readers. Each message contains the offsets or versions, and a remedy."""

from collections.abc import Iterable
from difflib import get_close_matches

from penstock.base.errors import StreamError


class ManifestNotFound(StreamError):
    """The store contains no manifest, or none of this cluster: it has not been published yet, or
    the URL is wrong.
    """

    def __init__(self, cluster_id: str) -> None:
        whose = f"of cluster {cluster_id!r}" if cluster_id else "of any cluster"
        super().__init__(
            f"the store holds no manifest {whose}: check its URL (`penstock dev` prints that of its"
            " store), and that the controllers run with manifest.interval.ms > 0"
        )
        self.cluster_id = cluster_id


class SeveralClusters(StreamError):
    """The store contains manifests of several clusters, and the reader must specify one of them."""

    def __init__(self, cluster_ids: list[str]) -> None:
        super().__init__(
            f"the store holds several clusters; name one of them: {', '.join(cluster_ids)}"
        )
        self.cluster_ids = cluster_ids


class ManifestRegressed(StreamError):
    """The newest manifest is older than one that was read before: the store was rolled back or
    replaced.
    """

    def __init__(self, seen: tuple[int, int], found: tuple[int, int]) -> None:
        super().__init__(
            f"the newest manifest is version {found[1]} of controller epoch {found[0]}, but version"
            f" {seen[1]} of epoch {seen[0]} was read before: the store was restored to an earlier"
            " state, or its address is now that of another store"
        )
        self.seen = seen
        self.found = found


class UnknownPartition(StreamError):
    """The topic, or this partition of it, does not exist."""

    def __init__(self, topic: str, partition: int | None, known: Iterable[str] = ()) -> None:
        """known: the topics that exist, for a hint."""
        near = [] if partition is not None else get_close_matches(topic, list(known), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(
            f"topic {topic!r} does not exist{hint}"
            if partition is None
            else f"topic {topic!r} has no partition {partition}"
        )
        self.topic = topic
        self.partition = partition


class OffsetsLost(StreamError):
    """The offsets are below the log start: retention or DeleteRecords removed them."""

    def __init__(
        self, topic: str, partition: int, start_offset: int, end_offset: int, log_start: int
    ) -> None:
        super().__init__(
            f"{topic}-{partition}: offsets [{start_offset}, {end_offset}) lie below the log start"
            f" {log_start}: retention has removed them; begin at the log start, or keep records"
            " longer (retention.ms, retention.bytes)"
        )
        self.topic = topic
        self.partition = partition
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.log_start = log_start


class OffsetsMissing(StreamError):
    """The offsets are at or above the log start, but are neither in the manifest nor in the tails
    of the WALs.
    """

    def __init__(self, topic: str, partition: int, start_offset: int, end_offset: int) -> None:
        super().__init__(
            f"{topic}-{partition}: offsets [{start_offset}, {end_offset}) are neither in the"
            " manifest nor in a WAL. If they are new, refresh the view; if they were acknowledged"
            " long ago, the store has lost objects"
        )
        self.topic = topic
        self.partition = partition
        self.start_offset = start_offset
        self.end_offset = end_offset


class EndInDoubt(StreamError):
    """The end of a partition is unknown: a WAL slot that may contain its newest records is lost or
    damaged.
    """

    retriable = True

    def __init__(self, topic: str, partition: int, known_end: int, error: StreamError) -> None:
        super().__init__(
            f"{topic}-{partition}: only the records below offset {known_end} are known: {error}"
        )
        self.topic = topic
        self.partition = partition
        self.known_end = known_end
        self.error = error

    def __reduce__(self) -> tuple[type["EndInDoubt"], tuple[str, int, int, StreamError]]:
        return EndInDoubt, (self.topic, self.partition, self.known_end, self.error)


class WalStoreRequired(StreamError):
    """The WALs of the cluster are in a separate store, which was not passed to the reader."""

    def __init__(self, cluster_id: str, url: str) -> None:
        super().__init__(
            f"the newest records of cluster {cluster_id!r} are in its WAL store, which is at {url}"
            " for the nodes of the cluster: name it with wal_store=, or with --wal-store"
            " (PENSTOCK_WAL_STORE) for commands and the console; or read what is uploaded with"
            " tail='uploaded'"
        )
        self.cluster_id = cluster_id
        self.url = url

    def __reduce__(self) -> tuple[type["WalStoreRequired"], tuple[str, str]]:
        return WalStoreRequired, (self.cluster_id, self.url)


class WalWalkTooSlow(StreamError):
    """Reading the WALs took longer than brokers keep committed slots: slots may have been deleted
    before they were read.
    """

    retriable = True

    def __init__(self, took_s: float, grace_s: float) -> None:
        super().__init__(
            f"reading the WALs took {took_s:.1f} s, but slots may be deleted {grace_s:.1f} s after"
            " their commit, and there were commits in that time: read closer to the store, or keep"
            " slots longer (wal.delete.grace.ms of the brokers, object.delete.grace.ms of the"
            " controllers)"
        )
        self.took_s = took_s
        self.grace_s = grace_s


class TooManyLeases(StreamError):
    """The store already contains the maximum number of leases."""

    def __init__(self, count_max: int) -> None:
        super().__init__(
            f"{count_max} leases exist already: release those that are not needed, or wait until"
            " they expire"
        )
        self.count_max = count_max


class TopicReplaced(StreamError):
    """A topic was deleted and created again: the old offsets do not apply to the new topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} was deleted and created again during the read: read the new one"
            " from its beginning"
        )
        self.topic = topic
