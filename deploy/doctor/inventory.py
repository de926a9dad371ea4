"""What lies in the bucket against what the metadata know: missing objects, damaged ones, orphans,
WAL slots that wait.

Invariants: pure: listed keys come in, page by page and in key order within a part; the image is
looked at when a key comes and once more at the end. Memory is bounded: the names of what is
referred to (the image holds them anyway), `CANDIDATES_MAX` suspects, no list of the bucket.
- Missing: referred to when the listing began and when it had ended, and not listed between. The
  caller asks for each by name before it says so.
- Orphan: unknown when it was listed and when the listing had ended, and older than the grace. Ids
  are never given twice, so what was unknown twice, and is that old, will not become known. Of WALs
  only slots below the end of one that has ended are orphans; its fence, what lies behind it, and
  WALs that the metadata do not know are nobody's to delete.
Must not do I/O. Source: ADR 0013, 0030; `controller.leader.janitor`, whose rules for WALs these
are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from base.ids import ObjectId
from controller.metadata.image import MetadataImage
from controller.metadata.objects import ObjectPhase
from objectstore.ports import ObjectInfo
from stream.format.keys import (
    DATA_ROOT,
    LEASE_ROOT,
    MANIFEST_ROOT,
    META_ROOT,
    SPARK_ROOT,
    STAGED_ROOT,
    WAL_ROOT,
    lease_prefix,
    parse_backup_key,
    parse_cluster_id,
    parse_data_key,
    parse_lease_key,
    parse_manifest_key,
    parse_snapshot_key,
    parse_wal_key,
)
from stream.format.layout import HEADER_BYTES
from stream.ports import BrokerIncarnation

PROBE_ROOT: Final = "probe/"
PARTS: Final = (
    *(f"{DATA_ROOT}{digit}" for digit in "0123456789abcdef"),
    WAL_ROOT, META_ROOT, MANIFEST_ROOT, LEASE_ROOT, PROBE_ROOT, SPARK_ROOT, STAGED_ROOT,
)  # fmt: skip
"""Prefixes that are listed, each by itself: data keys begin with reversed ids, so their sixteen
parts are equally large.
"""

CANDIDATES_MAX: Final = 100_000
"""Suspects that are remembered by name, of missing and of orphans; more are only counted."""

STAGED_AGE_MS: Final = 7 * 24 * 3_600_000


class Suspect(NamedTuple):
    key: str
    size_bytes: int
    modified_ms: int


class Expected(NamedTuple):
    """An object that a log refers to."""

    key: str
    object_id: ObjectId
    size_bytes: int


class Damaged(NamedTuple):
    expected: Expected
    found_bytes: int


class LostRange(NamedTuple):
    """Offsets of one stream that lay in an object which is gone, or shorter than it was."""

    topic: str
    partition: int
    kind: str
    start_offset: int
    end_offset: int
    key: str


@dataclass(slots=True)
class Backlog:
    """Slots of one running WAL that are not committed. newest: (key, modified) of the last slot
    that was listed, committed or not.
    """

    slots: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0
    newest: tuple[str, int] | None = None


@dataclass(slots=True)
class Suspects:
    """At most `CANDIDATES_MAX` by name, all counted."""

    items: list[Suspect] = field(default_factory=list[Suspect])
    count: int = 0

    def add(self, info: ObjectInfo) -> None:
        self.count += 1
        if len(self.items) < CANDIDATES_MAX:
            self.items.append(Suspect(info.key, info.size_bytes, info.modified_ms))


class Inventory:
    """image: the metadata as of now, each time it is called. now_ms: of the store's clock."""

    def __init__(
        self, cluster_id: str, image: Callable[[], MetadataImage], now_ms: int, older_than_ms: int
    ) -> None:
        self._cluster_id = cluster_id
        self._image = image
        self._now_ms = now_ms
        self._older_than_ms = older_than_ms
        self._expected = {part: sorted(_referred(image(), part)) for part in PARTS}
        self._at: dict[str, int] = dict.fromkeys(PARTS, 0)
        self._missing: list[Expected] = []
        self._damaged: list[Damaged] = []
        self._orphans = Suspects()
        self.object_count = 0
        self.size_bytes = 0
        self.young_count = 0
        """Unknown, and younger than the grace: normal where uploads are under way."""
        self.unknown_wals = Suspects()
        self.foreign = Suspects()
        self.staged: dict[str, int] = {}
        """Oldest object of each staged write."""
        self._lease_ids: set[UUID] = set()
        self.other_clusters: set[str] = set()
        self.backlogs: dict[BrokerIncarnation, Backlog] = {}

    @property
    def lease_count(self) -> int:
        return len(self._lease_ids)

    def saw(self, part: str, info: ObjectInfo) -> None:
        """One listed key, in the order of the part's keys."""
        self.object_count += 1
        self.size_bytes += info.size_bytes
        expected, at = self._expected[part], self._at[part]
        while at < len(expected) and expected[at].key < info.key:
            self._miss(expected[at])
            at += 1
        if at < len(expected) and expected[at].key == info.key:
            if expected[at].size_bytes != info.size_bytes:
                self._damaged.append(Damaged(expected[at], info.size_bytes))
            at += 1
        self._at[part] = at
        self._sort[part.partition("/")[0]](self, info)

    def ended(self, part: str) -> None:
        """All keys of the part were listed."""
        for expected in self._expected[part][self._at[part] :]:
            self._miss(expected)
        self._at[part] = len(self._expected[part])

    # --- afterwards, by the image as it is then ---------------------------------------------------

    def missing(self) -> list[Expected]:
        """Still referred to. They may have been listed in vain: ask for each by name."""
        return [
            expected
            for expected in self._missing
            if _is_referred(self._image(), expected.object_id)
        ]

    def damaged(self) -> list[Damaged]:
        return [
            item for item in self._damaged if _is_referred(self._image(), item.expected.object_id)
        ]

    def orphans(self) -> list[Suspect]:
        """Still unknown."""
        return [
            suspect for suspect in self._orphans.items if is_unknown(self._image(), suspect.key)
        ]

    @property
    def orphans_beyond(self) -> int:
        """Suspects that were only counted."""
        return self._orphans.count - len(self._orphans.items)

    def wals_of_nobody(self) -> list[Suspect]:
        """A broker may have registered meanwhile."""
        image = self._image()
        slots = ((suspect, parse_wal_key(suspect.key)) for suspect in self.unknown_wals.items)
        return [
            suspect
            for suspect, slot in slots
            if slot is not None and image.nodes.wal(slot.writer) is None
        ]

    def staged_old(self) -> list[str]:
        return sorted(
            name
            for name, oldest_ms in self.staged.items()
            if self._now_ms - oldest_ms >= STAGED_AGE_MS
        )

    # --- by what a key says it is -----------------------------------------------------------------

    def _miss(self, expected: Expected) -> None:
        if len(self._missing) < CANDIDATES_MAX:
            self._missing.append(expected)

    def _suspect(self, info: ObjectInfo) -> None:
        if self._now_ms - info.modified_ms >= self._older_than_ms or not self._older_than_ms:
            self._orphans.add(info)
        else:
            self.young_count += 1

    def _data(self, info: ObjectInfo) -> None:
        object_id = parse_data_key(info.key)
        if object_id is None:
            self.foreign.add(info)
        elif self._image().objects.get(object_id) is None:
            self._suspect(info)

    def _wal(self, info: ObjectInfo) -> None:
        slot, image = parse_wal_key(info.key), self._image()
        if slot is None:
            self.foreign.add(info)
            return
        wal = image.nodes.wal(slot.writer)
        if wal is None:
            self.unknown_wals.add(info)
        elif wal.end is not None:
            if (
                slot.sequence < wal.end
                and image.objects.in_place(info.key) is None
                and info.size_bytes > HEADER_BYTES
            ):
                self._suspect(info)
        else:
            backlog = self.backlogs.setdefault(slot.writer, Backlog())
            backlog.newest = info.key, info.modified_ms
            if slot.sequence >= wal.committed:
                backlog.slots += 1
                backlog.size_bytes += info.size_bytes
                backlog.oldest_ms = min(backlog.oldest_ms or info.modified_ms, info.modified_ms)

    def _meta(self, info: ObjectInfo) -> None:
        cluster_id = parse_cluster_id(info.key)
        if cluster_id is not None and cluster_id != self._cluster_id:
            self.other_clusters.add(cluster_id)
        elif (
            parse_snapshot_key(self._cluster_id, info.key) is None
            and parse_backup_key(self._cluster_id, info.key) is None
        ):
            self.foreign.add(info)

    def _manifest(self, info: ObjectInfo) -> None:
        parsed = parse_manifest_key(info.key)
        if parsed is None:
            self.foreign.add(info)
        elif parsed[0] != self._cluster_id:
            self.other_clusters.add(parsed[0])

    def _lease(self, info: ObjectInfo) -> None:
        if (parsed := parse_lease_key(self._cluster_id, info.key)) is not None:
            self._lease_ids.add(parsed[0])
        elif info.key.startswith(lease_prefix(self._cluster_id)):
            self.foreign.add(info)

    def _probe(self, info: ObjectInfo) -> None:
        """Brokers write theirs again and again; a probe of a start that was killed stays."""
        if is_left_probe(info.key):
            self._suspect(info)

    def _staged(self, info: ObjectInfo) -> None:
        name = "/".join(info.key.split("/", 2)[:2]) + "/"
        self.staged[name] = min(self.staged.get(name, info.modified_ms), info.modified_ms)

    def _ours(self, info: ObjectInfo) -> None:
        """Starts of Spark's queries belong to checkpoints that are elsewhere."""

    _sort: Final = {
        "data": _data,
        "wal": _wal,
        "meta": _meta,
        "manifest": _manifest,
        "leases": _lease,
        "probe": _probe,
        "spark": _ours,
        "staged": _staged,
    }


def is_left_probe(key: str) -> bool:
    return key.startswith((f"{PROBE_ROOT}probe-", f"{PROBE_ROOT}doctor-"))


def is_unknown(image: MetadataImage, key: str) -> bool:
    """By this image, nothing needs it, and nothing will: it may be deleted if it is old enough."""
    if is_left_probe(key):
        return True
    object_id = parse_data_key(key)
    if object_id is not None:
        return image.objects.get(object_id) is None
    slot = parse_wal_key(key)
    wal = None if slot is None else image.nodes.wal(slot.writer)
    is_past = (
        slot is not None and wal is not None and wal.end is not None and slot.sequence < wal.end
    )
    return is_past and image.objects.in_place(key) is None


def lost_ranges(image: MetadataImage, object_ids: Iterable[ObjectId]) -> list[LostRange]:
    """What lies in these objects, by topic, partition, kind and offset. O(all ranges)."""
    gone = frozenset(object_ids)
    found: list[LostRange] = []
    for stream in image.streams if gone else ():
        topic = image.topics.by_id(stream.topic_id)
        for entry in stream.entries:
            if entry.object_id in gone:
                state = image.objects.get(entry.object_id)
                name, key = "?" if topic is None else topic.name, "" if state is None else state.key
                start = max(entry.start_offset, stream.start_offset)
                found.append(
                    LostRange(name, stream.partition, stream.kind, start, entry.end_offset, key)
                )
    return sorted(found)


def overdue(image: MetadataImage, now_ms: int, after_ms: int) -> int:
    """Objects that were given up longer ago than this, and are still known."""
    return sum(state.since_ms + after_ms < now_ms for state in image.objects.destroyed())


def _referred(image: MetadataImage, part: str) -> Iterable[Expected]:
    return (
        Expected(state.key, state.object_id, state.size_bytes)
        for state in image.objects
        if state.refs and state.key.startswith(part)
    )


def _is_referred(image: MetadataImage, object_id: ObjectId) -> bool:
    state = image.objects.get(object_id)
    return state is not None and state.phase == ObjectPhase.COMMITTED and state.refs > 0
