"""Publish the public manifest to the store, as one object per version: at most one per second, and
only if something has changed or a day has passed. See docs/design/manifest.md.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from penstock.base.clock import MonotonicClock, WallClock
from penstock.base.ids import Millis, WalStoreId
from penstock.controller.active.manifest.changes import ManifestChanges
from penstock.controller.active.manifest.ledger import Ledger
from penstock.controller.active.writer import Runtime
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.lost_ranges import objects_in
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import WalState
from penstock.controller.metadata.records import MetadataOffset, Record
from penstock.controller.metadata.topic_configs import CONFIG_DEFAULTS
from penstock.objectstore.errors import ObjectNotFound, ObjectStoreError, PreconditionFailed
from penstock.objectstore.ports import DELETE_BATCH_COUNT, ObjectStore
from penstock.stream.errors import FormatUnknown, ObjectCorrupt
from penstock.stream.format.keys import manifest_key, manifest_prefix, parse_manifest_key
from penstock.stream.format.manifest import codec
from penstock.stream.format.manifest.codec import Draft
from penstock.stream.format.manifest.model import LiveWal, ManifestRoot, WalStoreEntry

_log = structlog.get_logger(__name__)

CAPTURE_ENTRIES_MAX = 3_000
"""Entries captured between two batches, which takes 3 to 5 ms. A partition counts as ten
entries.
"""

VERSION_S_MAX = 86_400.0
"""A new version is published after this time even if nothing has changed. Leases expire seven days
after the publication of their manifest, so in an idle cluster they would otherwise have no effect.
"""

LOOKS_PER_DOUBLING = 16
"""After this many captures, the size of each is doubled. Otherwise, changes that arrive faster than
they are captured would delay the version forever.
"""


class Superseded(Exception):
    """Raised when a controller with a higher epoch publishes, which means that this one is no
    longer active.
    """

    def __init__(self, own_epoch: int, found_epoch: int) -> None:
        super().__init__(
            f"the newest manifest is of controller epoch {found_epoch}, this controller leads epoch"
            f" {own_epoch}"
        )


@dataclass(frozen=True, slots=True)
class _Moment:
    """The contents of the root except for its topics, captured together with the last of the
    topics.
    """

    metadata_offset: MetadataOffset
    published_ms: Millis
    wals: tuple[LiveWal, ...]
    wal_grace_ms: int
    wal_stores: tuple[WalStoreEntry, ...]


def _live_wal(image: MetadataImage, wal: WalState) -> LiveWal:
    """Describe a WAL. Leaders are listed as stream owners, because they open streams without
    another change of the manifest.
    """
    writer = wal.writer
    has_streams = image.streams.has_opened(writer) or bool(image.topics.led_count(writer))
    return LiveWal(writer.node_id, writer.node_epoch, wal.committed, wal.store_id, has_streams)


@dataclass(frozen=True, slots=True)
class _Behind:
    """The first unpublished change, which is at or after `offset`. `since` is a monotonic time."""

    offset: MetadataOffset
    since: float


class ManifestPublisher:
    """The publishing task of one active controller. Create it before its runtime starts.

    Versions form a chain: each has the number of the newest one in the store + 1 and is written
    with put_if_absent. A publisher stops if it finds a version of a higher controller epoch. A
    version represents one moment, between two batches of the writer. A PUT with an unknown outcome
    is repeated with the same bytes and key. A new leader writes everything again. A change that has
    been visible for less than the read grace period is treated as not visible (`protected_from`),
    and brokers delete only objects that the manifest lists as deleted (`shown_offset`). A slot or
    object therefore still exists for that long after the last root that lists it was replaced. The
    image is captured, encoded and compressed in steps of about 10 ms.
    """

    def __init__(
        self,
        config: ControllerConfig,
        runtime: Runtime,
        store: ObjectStore,
        *,
        now: MonotonicClock,
        now_ms: WallClock,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._store = store
        self._now = now
        self._now_ms = now_ms
        self._ledger = Ledger()
        self._changes = ManifestChanges(everything=True)
        self._wake = asyncio.Event()
        self._wake.set()
        self._newest = -1
        """The newest known version in the store, or -1 if unknown."""
        self._draft: Draft | None = None
        self._unsent: list[bytes] | None = None
        self._stored: set[int] = set()
        self._retired: dict[int, float] = {}
        self._unreferenced: set[WalStoreId] = set()
        """Lost WAL stores that are no longer in the manifest."""
        self._behind: _Behind | None = _Behind(MetadataOffset(0), now())
        self._drawn_behind: _Behind | None = self._behind
        self._sent_at = now()
        self._shown: deque[tuple[float, MetadataOffset]] = deque()
        """For each version in the store that is younger than the grace period, the time of the
        write and the offset of the oldest change that it contains.
        """
        runtime.observe(self._note)

    async def run(self) -> None:
        """Publish versions until cancelled, until the runtime ends, or until another controller has
        taken over.
        """
        interval_s = self._config.manifest_interval_ms / 1_000
        while True:
            await self._until_due()
            began = self._now()
            try:
                await self.publish()
                await self._drop_old()
            except Superseded as error:
                _log.warning("manifest_superseded", reason=str(error))
                return
            except (ObjectStoreError, FormatUnknown) as error:
                _log.warning("manifest_publish_failed", error=str(error))
                self._wake.set()
            await asyncio.sleep(max(0.0, began + interval_s - self._now()))

    async def protected_from(self) -> MetadataOffset | None:
        """Return the offset from which on the janitor must keep destroyed objects.

        Objects destroyed at or after this offset may be listed in a version that was the newest one
        less than a grace period ago.
        """
        due_at = self._now() - self._config.read_grace_ms / 1_000
        while self._shown and self._shown[0][0] <= due_at:
            self._shown.popleft()
        if self._shown:
            return self._shown[0][1]
        return None if self._behind is None else self._behind.offset

    @property
    def shown_offset(self) -> MetadataOffset:
        """Return the metadata offset below which all changes are in the newest version."""
        return self._runtime.image.end_offset if self._behind is None else self._behind.offset

    @property
    def behind_s(self) -> float:
        """Return the age of the oldest change that is not in any stored version, or 0 if there is
        none.
        """
        return 0.0 if self._behind is None else self._now() - self._behind.since

    async def publish(self) -> bool:
        """Publish one version now if anything changed or a day has passed. Return whether one was
        written.

        Raises Superseded, ObjectStoreError, and the exceptions of `Runtime.with_committed_image`.
        """
        self._wake.clear()
        if self._newest < 0:
            await self._adopt()
        if self._unsent is None and not await self._draw_up():
            return False
        await self._send()
        return True

    def _note(self, records: Sequence[Record]) -> None:
        if self._changes.note(records):
            now = _Behind(
                MetadataOffset(self._runtime.image.end_offset - len(records)), self._now()
            )
            self._behind = self._behind or now
            self._drawn_behind = self._drawn_behind or now
            self._wake.set()

    async def _until_due(self) -> None:
        """Wait until something has changed, until old versions may be deleted, or until the newest
        version is a day old.
        """
        wait_s = max(0.0, self._sent_at + VERSION_S_MAX - self._now())
        if self._retired:
            wait_s = min(wait_s, self._config.manifest_grace_ms / 1_000)
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

    # --- capture and encoding ---------------------------------------------------------------------

    async def _draw_up(self) -> bool:
        """Capture and encode changes in steps. Return False if nothing has changed and the newest
        version is recent.
        """
        draft = self._draft = self._draft or Draft(self._newest + 1)
        looks_count = 0
        while True:
            entries_max = CAPTURE_ENTRIES_MAX << looks_count // LOOKS_PER_DOUBLING
            looks_count += 1
            capture = partial(self._capture, entries_max)
            moment = await self._runtime.with_committed_image(capture)
            for _ in self._ledger.write(draft):
                await asyncio.sleep(0)
            if moment is not None:
                break
        if not self._ledger.changed and self._now() - self._sent_at < VERSION_S_MAX:
            self._behind = self._drawn_behind
            return False
        self._ledger.changed = False
        root = ManifestRoot(
            self._config.cluster_id,
            self._runtime.epoch,
            draft.version,
            moment.metadata_offset,
            moment.published_ms,
            moment.wals,
            self._ledger.topic_entries(),
            moment.wal_grace_ms,
            CONFIG_DEFAULTS,
            moment.wal_stores,
        )
        self._unsent = draft.finish(root)
        return True

    def _capture(self, entries_max: int, image: MetadataImage) -> _Moment | None:
        """Capture a part of the changes between two batches. Return None if there are more changes
        to capture.
        """
        changes, self._changes = self._changes, ManifestChanges()
        assert self._draft is not None, "drawn up without a draft"
        self._ledger.absorb(changes, image, self._draft.version)
        if not self._ledger.capture(image, entries_max):
            return None
        self._drawn_behind = None
        wals = tuple(_live_wal(image, wal) for wal in image.nodes.running_wals())
        wal_stores = tuple(
            WalStoreEntry(listed.store_id, listed.uuid, listed.url)
            for listed in image.nodes.all_wal_stores()
            if self._is_referenced(image, listed.store_id)
        )
        graces_ms = [node.wal_delete_grace_ms for node in image.nodes if not node.fenced]
        return _Moment(
            image.end_offset,
            self._now_ms(),
            wals,
            min([self._config.read_grace_ms, *graces_ms]),
            wal_stores,
        )

    def _is_referenced(self, image: MetadataImage, store_id: WalStoreId) -> bool:
        """Return whether readers may need the WAL store. They need a lost WAL store until its WALs
        have ended and no range refers to it; until then, their reads fail.
        """
        if not image.nodes.is_wal_store_ended(store_id):
            return True
        if store_id in self._unreferenced:
            return False
        if any(wal.store_id == store_id for wal in image.nodes.running_wals()):
            return True
        if objects_in(image, {store_id}):
            return True
        self._unreferenced.add(store_id)
        return False

    # --- the store --------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Write the captured version.

        If another controller has written this version, everything is captured again for the next
        one.
        """
        assert self._unsent is not None, "nothing is drawn up"
        assert self._draft is not None, "nothing is drawn up"
        version, chunks = self._draft.version, self._unsent
        key = manifest_key(self._config.cluster_id, version)
        try:
            await self._store.put_if_absent(key, chunks)
        except PreconditionFailed:
            if not await self._holds(key, chunks[-1]):
                await self._adopt()
                return
        size_bytes = sum(map(len, chunks))
        self._newest, self._sent_at = version, self._now()
        self._draft = self._unsent = None
        if self._behind is not None:
            self._shown.append((self._now(), self._behind.offset))
        self._behind = self._drawn_behind
        if self._behind is not None:
            # Changes made while this version could not be written did not set the event again.
            self._wake.set()
        self._stored.add(version)
        for old in self._stored - self._ledger.versions().keys() - {version}:
            self._retired.setdefault(old, self._now())
        _log.debug("manifest_published", version=version, bytes=size_bytes)

    async def _holds(self, key: str, footer: bytes) -> bool:
        """Return True if the object contains our own bytes, because an earlier attempt has
        succeeded.

        Objects with equal footers are equal.
        """
        try:
            tail = await self._store.get_tail(key, codec.FOOTER.size)
        except ObjectNotFound:
            return False
        return tail.data == footer

    async def _adopt(self) -> None:
        """Find the newest version in the store, and start over with the next one. Raises
        Superseded.
        """
        self._draft = self._unsent = None
        self._changes = ManifestChanges(everything=True)
        self._wake.set()
        versions: list[int] = []
        async for info in self._store.list(manifest_prefix(self._config.cluster_id)):
            parsed = parse_manifest_key(info.key)
            if parsed is not None:
                versions.append(parsed[1])
        newest = max(versions, default=0)
        if newest:
            await self._check_epoch(manifest_key(self._config.cluster_id, newest))
        self._newest = newest
        self._stored = set(versions)

    async def _check_epoch(self, key: str) -> None:
        try:
            tail = await self._store.get_tail(key, codec.FOOTER.size)
            footer = codec.parse_footer(tail.data, tail.size_bytes, key)
        except ObjectNotFound:
            return  # a newer version has replaced this one, and the next write will detect it
        except ObjectCorrupt as error:
            _log.error(
                "manifest_damaged",
                key=key,
                error=str(error),
                hint="the next version will be complete",
            )
            return
        if footer.controller_epoch > self._runtime.epoch:
            raise Superseded(self._runtime.epoch, footer.controller_epoch)

    async def _drop_old(self) -> None:
        """Delete versions that no root younger than the grace period refers to."""
        due_at = self._now() - self._config.manifest_grace_ms / 1_000
        due = [version for version, since in self._retired.items() if since <= due_at][
            :DELETE_BATCH_COUNT
        ]
        if due:
            await self._store.delete(
                [manifest_key(self._config.cluster_id, version) for version in due]
            )
            for version in due:
                del self._retired[version]
                self._stored.discard(version)
