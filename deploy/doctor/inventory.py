"""Compare the listed bucket with the metadata: missing and damaged objects, orphans, uncommitted
WAL slots.

Invariant: pure, without I/O. Source: docs/design/disaster-recovery.md,
docs/design/observability.md; the rules for WALs are those of `controller.active.janitor`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.ids import ObjectId, WalStoreId
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase
from penstock.objectstore.ports import ObjectInfo
from penstock.stream.format.keys import (
    DATA_ROOT,
    LEASE_ROOT,
    MANIFEST_ROOT,
    META_ROOT,
    SPARK_ROOT,
    STAGED_ROOT,
    WAL_ROOT,
    is_wal_store_entry,
    lease_prefix,
    parse_backup_key,
    parse_cluster_id,
    parse_data_key,
    parse_lease_key,
    parse_manifest_key,
    parse_snapshot_key,
    parse_wal_key,
    wal_root,
)
from penstock.stream.format.layout import HEADER_BYTES
from penstock.stream.ports import BrokerIncarnation

PROBE_ROOT: Final = "probe/"
PARTS: Final = (
    *(f"{DATA_ROOT}{digit}" for digit in "0123456789abcdef"),
    WAL_ROOT, META_ROOT, MANIFEST_ROOT, LEASE_ROOT, PROBE_ROOT, SPARK_ROOT, STAGED_ROOT,
)  # fmt: skip
"""Prefixes that are listed separately. Data keys begin with reversed ids, so their 16 parts are
equally large.
"""

CANDIDATES_MAX: Final = 100_000
"""Maximum number of names that are stored for missing objects and for orphans; additional ones are
only counted.
"""

STAGED_AGE_MS: Final = 7 * 24 * 3_600_000


class Suspect(NamedTuple):
    key: str
    size_bytes: int
    modified_ms: int


class Expected(NamedTuple):
    """A referenced object."""

    key: str
    object_id: ObjectId
    size_bytes: int


class Damaged(NamedTuple):
    expected: Expected
    found_bytes: int


class LostRange(NamedTuple):
    """Offsets of one stream in a missing or truncated object."""

    topic: str
    partition: int
    kind: str
    start_offset: int
    end_offset: int
    key: str


@dataclass(slots=True)
class Backlog:
    """Uncommitted slots of one running WAL. newest: (key, modified) of its last listed slot,
    whether committed or not.
    """

    slots: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0
    newest: tuple[str, int] | None = None


@dataclass(slots=True)
class Suspects:
    """Unknown objects: at most `CANDIDATES_MAX` by name, all counted."""

    items: list[Suspect] = field(default_factory=list[Suspect])
    count: int = 0

    def add(self, info: ObjectInfo) -> None:
        self.count += 1
        if len(self.items) < CANDIDATES_MAX:
            self.items.append(Suspect(info.key, info.size_bytes, info.modified_ms))


class Inventory:
    """Collects the listed keys. image: returns the current metadata. now_ms: according to the
    store's clock. wal_stores: the WAL stores that are listed.

    Keys arrive page by page and in order within a part. The image is read when a key arrives and
    again at the end. Memory is bounded by the names of referenced objects, which the image contains
    anyway, and `CANDIDATES_MAX` suspects.

    - Missing: referenced before and after the listing, and not in it. The caller requests each by
      name before reporting it.
    - Orphan: unknown when listed and after the listing, and older than the grace period. Ids are
      never reused, so such an object cannot become known. In a WAL, only slots below the end of an
      ended WAL are orphans. Its fence, later slots, and WALs that the metadata does not contain
      must never be deleted.
    """

    def __init__(
        self,
        cluster_id: str,
        image: Callable[[], MetadataImage],
        now_ms: int,
        older_than_ms: int,
        wal_stores: Iterable[WalStoreId] = (),
    ) -> None:
        self.parts = (*PARTS, *map(wal_root, wal_stores))
        self._cluster_id = cluster_id
        self._image = image
        self._now_ms = now_ms
        self._older_than_ms = older_than_ms
        self._expected = {part: sorted(_referred(image(), part)) for part in self.parts}
        self._at: dict[str, int] = dict.fromkeys(self.parts, 0)
        self._missing: list[Expected] = []
        self._damaged: list[Damaged] = []
        self._orphans = Suspects()
        self.object_count = 0
        self.size_bytes = 0
        self.young_count = 0
        """Number of unknown objects younger than the grace period, which is normal during
        uploads.
        """
        self._unknown_wals = Suspects()
        self.foreign = Suspects()
        self.staged: dict[str, int] = {}
        """Time of the oldest object of each staged write."""
        self._lease_ids: set[UUID] = set()
        self.other_clusters: set[str] = set()
        self.backlogs: dict[BrokerIncarnation, Backlog] = {}

    @property
    def lease_count(self) -> int:
        return len(self._lease_ids)

    def add(self, part: str, info: ObjectInfo) -> None:
        """Add one listed key. Keys of a part must be added in order."""
        self.object_count += 1
        self.size_bytes += info.size_bytes
        expected, at = self._expected[part], self._at[part]
        while at < len(expected) and expected[at].key < info.key:
            self._add_missing(expected[at])
            at += 1
        if at < len(expected) and expected[at].key == info.key:
            if expected[at].size_bytes != info.size_bytes:
                self._damaged.append(Damaged(expected[at], info.size_bytes))
            at += 1
        self._at[part] = at
        self._sort[part.partition("/")[0]](self, info)

    def end_part(self, part: str) -> None:
        """Mark all keys of the part as listed."""
        for expected in self._expected[part][self._at[part] :]:
            self._add_missing(expected)
        self._at[part] = len(self._expected[part])

    # --- afterwards, with the newest image ---------------------------------------------------

    def missing(self) -> list[Expected]:
        """Return referenced objects that were not listed. The caller must request each by name to
        be sure.
        """
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
        """Return orphans that are still unknown."""
        return [
            suspect for suspect in self._orphans.items if is_unknown(self._image(), suspect.key)
        ]

    @property
    def unnamed_orphan_count(self) -> int:
        """Return the number of suspects that were only counted."""
        return self._orphans.count - len(self._orphans.items)

    def unknown_wal_slots(self) -> list[Suspect]:
        """Return slots of WALs that are still unknown; a broker may have registered in the
        meantime.
        """
        image = self._image()
        slots = ((suspect, parse_wal_key(suspect.key)) for suspect in self._unknown_wals.items)
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

    # --- by kind of key -----------------------------------------------------------------

    def _add_missing(self, expected: Expected) -> None:
        if len(self._missing) < CANDIDATES_MAX:
            self._missing.append(expected)

    def _add_unknown(self, info: ObjectInfo) -> None:
        if self._now_ms - info.modified_ms >= self._older_than_ms or not self._older_than_ms:
            self._orphans.add(info)
        else:
            self.young_count += 1

    def _data(self, info: ObjectInfo) -> None:
        object_id = parse_data_key(info.key)
        if object_id is None:
            self.foreign.add(info)
        elif self._image().objects.get(object_id) is None:
            self._add_unknown(info)

    def _wal(self, info: ObjectInfo) -> None:
        slot, image = parse_wal_key(info.key), self._image()
        if slot is None:
            if not is_wal_store_entry(info.key):
                self.foreign.add(info)
            return
        wal = image.nodes.wal(slot.writer)
        if wal is None:
            self._unknown_wals.add(info)
        elif wal.end is not None:
            if (
                slot.sequence < wal.end
                and image.objects.in_place(info.key) is None
                and info.size_bytes > HEADER_BYTES
            ):
                self._add_unknown(info)
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
        """Count old probe objects. Brokers overwrite their own probe objects, but those of a killed
        process remain.
        """
        if is_left_probe(info.key):
            self._add_unknown(info)

    def _staged(self, info: ObjectInfo) -> None:
        name = "/".join(info.key.split("/", 2)[:2]) + "/"
        self.staged[name] = min(self.staged.get(name, info.modified_ms), info.modified_ms)

    def _spark(self, info: ObjectInfo) -> None:
        """Skip keys of Spark queries, because their checkpoints are stored elsewhere."""

    _sort: Final = {
        "data": _data,
        "wal": _wal,
        "wals": _wal,
        "meta": _meta,
        "manifest": _manifest,
        "leases": _lease,
        "probe": _probe,
        "spark": _spark,
        "staged": _staged,
    }


def is_left_probe(key: str) -> bool:
    return key.startswith((f"{PROBE_ROOT}probe-", f"{PROBE_ROOT}doctor-"))


def is_unknown(image: MetadataImage, key: str) -> bool:
    """Return True if this image does not reference the object and later ones never will, so that
    the object may be deleted when it is old enough.
    """
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
    """Return the ranges in these objects, by topic, partition, kind and offset. This takes O(all
    ranges).
    """
    gone = frozenset(object_ids)
    found: list[LostRange] = []
    for stream in image.streams if gone else ():
        name = image.topic_name(stream.topic_id) or "?"
        for entry in (*stream.kept_entries, *stream.entries):
            if entry.object_id in gone:
                state = image.objects.get(entry.object_id)
                key = "" if state is None else state.key
                start = max(entry.start_offset, stream.kept_offset)
                found.append(
                    LostRange(name, stream.partition, stream.kind, start, entry.end_offset, key)
                )
    return sorted(found)


def overdue(image: MetadataImage, now_ms: int, after_ms: int) -> int:
    """Return the number of objects that were destroyed more than after_ms ago and not deleted."""
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
