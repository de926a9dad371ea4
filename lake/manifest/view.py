"""A view of a cluster from its store: the newest manifest, the tails of the WALs, and plans from
both.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from penstock.base.ids import StreamId
from penstock.lake.fetch.errors import ObjectGone
from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.errors import (
    EndInDoubt,
    ManifestNotFound,
    ManifestRegressed,
    OffsetsLost,
    OffsetsMissing,
    SeveralClusters,
    UnknownPartition,
    WalStoreRequired,
    WalWalkTooSlow,
)
from penstock.lake.manifest.plan import (
    OffsetRange,
    Source,
    TailRange,
    joined_tail,
    pages_wanted,
    plan,
)
from penstock.lake.manifest.sections import SectionReader, load_root
from penstock.lake.manifest.tail import WalTails
from penstock.lake.manifest.transactions import TransactionEvents
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.keys import (
    MANIFEST_ROOT,
    WAL_STORE_ROOT,
    manifest_key,
    manifest_prefix,
    parse_manifest_key,
)
from penstock.stream.format.manifest import codec
from penstock.stream.format.manifest.model import (
    PARTITIONS_PER_SHARD,
    CommittedLog,
    Entries,
    ManifestRoot,
    PageRef,
    PartitionEntry,
    SectionRef,
    Shard,
    StreamEntry,
    TopicEntry,
    split_name,
)
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import IN_STORE, WalStoreIdentity
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores, check_identity

PROBE_S = 60.0
"""If the newest version was determined less than this long ago, its successor cannot have been
published and deleted again (`manifest_grace_ms` is longer), so one GET of the next key shows
whether there is a newer version. Otherwise, a LIST is needed.
"""

LEADERS_LAG_S = 3.0
"""Maximum delay until a manifest contains a leader change: `manifest.interval.ms` is 1 s, and
publishing takes some time. The view waits only if it finds a lost or damaged slot.
"""

_PROBES_MAX = 3
_TRIES_MAX = 3
PAGE_CACHE_ENTRIES_MAX = 300_000
"""Maximum number of entries in the page cache: about 40 MiB with their keys."""

_TXN_READS_MAX = 32
"""Maximum number of txn streams that are read concurrently."""

_T = TypeVar("_T")
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets of one partition.

    `end_offset` includes WAL tails, `committed_end` does not. `last_stable_offset` is the end of
    decided transactions, if requested; it never decreases.
    """

    topic: str
    topic_id: UUID
    partition: int
    stream_id: StreamId
    leader: int
    log_start: int
    committed_end: int
    end_offset: int
    last_stable_offset: int | None = None

    @property
    def high_watermark(self) -> int:
        return self.end_offset

    def readable_end(self, *, committed: bool) -> int:
        """Return the end for readers of committed records, or for readers of all records."""
        end = self.last_stable_offset if committed else self.end_offset
        assert end is not None, "the last stable offset was not asked for"
        return max(end, self.log_start)


class ClusterView:
    """Call `refresh` first, and before each read that must be up to date. The caller owns the
    store.

    Invariants: a view represents one state of the metadata and only advances: a manifest older than
    a previous one is rejected. Offsets never disappear, because WAL slots are kept until a manifest
    contains their commit. A view does not send requests to brokers or controllers. Cost: a refresh
    of an idle cluster is one GET for the manifest and one for each live WAL, all for keys that do
    not exist yet. Belongs to one event loop; concurrent calls are serialized.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str = "",
        *,
        wal_store: ObjectStore | None = None,
        uploaded_only: bool = False,
    ) -> None:
        """`cluster_id` may be empty if the store contains only one cluster. wal_store: required if
        the WALs are in a store of their own; its identity is checked. uploaded_only: whether
        partitions end at the first record that is not in the store, so that no WAL store is needed.
        """
        self._uploaded_only = uploaded_only
        self._uploaded_ends: dict[int, int] = {}
        """With `uploaded_only`, the end of the committed records in the store, by stream."""
        configured = None if wal_store is None else ConfiguredWalStore(wal_store, "")
        self._wal_stores = WalStores(store, configured)
        store = self._wal_stores.store
        self._store = store
        self._cluster_id = cluster_id
        self._sections = SectionReader(store, cluster_id)
        self._tails = WalTails(store)
        self._events = TransactionEvents(store)
        self._unstable: dict[int, tuple[int, int]] = {}
        """For each txn stream, its end when it was last read, and the first unstable offset at that
        time.
        """
        self._root: ManifestRoot | None = None
        self._topics: dict[str, TopicEntry] = {}
        self._newest_at = 0.0
        self._shards: dict[SectionRef, Shard] = {}
        self._pages: OrderedDict[SectionRef, Entries] = OrderedDict()
        self._page_entries = 0
        self._lock = asyncio.Lock()

    @property
    def root(self) -> ManifestRoot:
        """The manifest of this view. It exists only after `refresh`."""
        assert self._root is not None, "refresh() first"
        return self._root

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def store(self) -> ObjectStore:
        """The store of the objects that plans refer to, including slots in the WAL store."""
        return self._store

    async def refresh(self) -> ManifestRoot:
        """Read the newest manifest, and the WALs to their ends.

        Raise ManifestNotFound, SeveralClusters, ManifestRegressed, WalWalkTooSlow,
        WalStoreRequired, WalStoreWrong, ObjectCorrupt (for a manifest) or ObjectStoreError; the
        view is then unchanged. Lost and damaged WAL slots raise EndInDoubt later, when the end of
        an affected partition is requested.
        """
        async with self._lock:
            return await self._refresh()

    def topics(self, pattern: str | None = None, snapshot: str = "") -> list[TopicEntry]:
        """Return all topics by name, or only those whose full name matches the regular expression.
        With a snapshot, return its topics; without one, topics of snapshots are not included.
        """
        matches = re.compile(pattern or ".*").fullmatch
        found: list[TopicEntry] = []
        for topic in self.root.topics:
            name, its_snapshot = split_name(topic.name)
            if its_snapshot == snapshot and matches(name):
                found.append(topic)
        return sorted(found, key=lambda topic: topic.name)

    async def partitions(
        self, topics: Sequence[str], *, committed: bool = False
    ) -> list[PartitionOffsets]:
        """Return every partition of these topics, as of the last refresh. Raise UnknownPartition
        for a topic that does not exist, or EndInDoubt.

        With `committed`, include last stable offsets. Cost: one or two additional GETs for each
        partition with new transactions since the last call.
        """
        return await self._retried(lambda: self._states(topics, committed))

    async def plan(
        self, wanted: Sequence[OffsetRange], *, timestamp_from_ms: int | None = None
    ) -> list[Slice]:
        """Return slices that cover the wanted offsets exactly once, in the order of `wanted`. See
        `lake.manifest.plan`.

        Raise UnknownPartition, OffsetsLost or OffsetsMissing. Cost: one GET per shard, and one per
        4 MiB of pages that are not in the cache.
        """
        return await self._retried(lambda: self._plan(wanted, timestamp_from_ms))

    def bodies_of(self, slices: Iterable[Slice]) -> dict[str, bytes]:
        """Return, by key, the objects of the slices that this view has read completely: immutable
        WAL slots of a few KiB.
        """
        found: dict[str, bytes] = {}
        for key in {part.key for part in slices}:
            body = self._tails.body_of(key)
            if body is not None:
                found[key] = body
        return found

    async def aborted(self, wanted: Sequence[OffsetRange]) -> dict[int, list[AbortedTransaction]]:
        """Return the aborted transactions of the ranges by data stream id, with every requested
        stream. The result for a range never changes.

        Raise UnknownPartition, OffsetsLost if the events are already deleted, or OffsetsMissing if
        transactions are still undecided. Cost: one or more GETs for each range, none for partitions
        without transactions.
        """
        return await self._retried(lambda: self._aborted(wanted))

    async def plain(self, wanted: Sequence[OffsetRange]) -> frozenset[int]:
        """Return the data streams of ranges without transactions, in which no record is a marker or
        aborted. Other streams may also have such ranges.

        Raise UnknownPartition. Cost: none for partitions without transactions, otherwise one or
        more GETs.
        """
        return await self._retried(lambda: self._plain(wanted))

    async def _retried(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Retry with a newer manifest if an object is missing, because this view is then
        outdated.
        """
        async with self._lock:
            for attempt in range(_TRIES_MAX):
                try:
                    return await read()
                except (ObjectNotFound, ObjectGone):
                    if attempt == _TRIES_MAX - 1:
                        raise
                    await self._reload()
        raise AssertionError("the last attempt raises")

    async def committed(self, topic: str) -> list[CommittedLog]:
        """Return every committed entry of every partition, as of the last refresh: 100 bytes each.
        Raise UnknownPartition.
        """
        async with self._lock:
            for attempt in range(_TRIES_MAX):
                try:
                    return await self._committed(self._topic(topic))
                except ObjectNotFound:
                    if attempt == _TRIES_MAX - 1:
                        raise
                    await self._reload()
        raise AssertionError("the last attempt raises")

    # --- the manifest -----------------------------------------------------------------------------

    async def _refresh(self) -> ManifestRoot:
        now = asyncio.get_running_loop().time
        took_s, grace_s = 0.0, 0.0
        tails = self._tails.copy()
        for tries_left in reversed(range(_TRIES_MAX)):
            began = now()
            root = await self._newest()
            await self._check_wal_stores(root)
            tails.follow(
                [w for w in root.wals if not self._uploaded_only or w.wal_store == IN_STORE]
            )
            found_bad_slots = await tails.advance()
            await self._check_wal_stores(root)
            # A slot that was committed during the walk may be deleted a grace period after a newer
            # root contains it, so a missing slot may have existed.
            took_s, grace_s = now() - began, root.wal_grace_ms / 1_000
            is_whole = took_s <= grace_s or (await self._newest()).version == root.version
            if is_whole and not (found_bad_slots and tries_left):
                self._take(root, tails, began)
                return root
            if found_bad_slots:
                # The partitions affected by a bad slot depend on the leaders when it was written,
                # which this root may not contain yet.
                await asyncio.sleep(LEADERS_LAG_S)
        raise WalWalkTooSlow(took_s, grace_s)

    def _take(self, root: ManifestRoot, tails: WalTails, newest_at: float) -> None:
        """Replace the state of this view. This happens only after the walk was checked: a walk in
        the wrong WAL store proves nothing, not even that these tails belong to the newer root.
        """
        self._root, self._tails, self._newest_at = root, tails, newest_at
        self._topics = {topic.name: topic for topic in root.topics}
        wanted = {ref for topic in root.topics for ref in topic.shards}
        self._shards = {ref: shard for ref, shard in self._shards.items() if ref in wanted}

    async def _check_wal_stores(self, root: ManifestRoot) -> None:
        """Check before and after a walk that the WAL store is the right one, because the walk
        treats an absent slot as the end of a WAL.
        """
        wal_stores = () if self._uploaded_only else root.wal_stores
        self._wal_stores.follow(listed.store_id for listed in wal_stores)
        for listed in wal_stores:
            if self._wal_stores.configured is None:
                raise WalStoreRequired(root.cluster_id, listed.url)
            await check_identity(
                self._store, WalStoreIdentity(root.cluster_id, listed.store_id, listed.uuid)
            )

    async def _newest(self) -> ManifestRoot:
        """Return the root of the newest version, or the known one if none is newer."""
        known = self._root
        if known is not None and asyncio.get_running_loop().time() - self._newest_at < PROBE_S:
            found = await self._probe(known)
            if found is not None:
                return found
        for attempt in range(_TRIES_MAX):
            version = await self._newest_version()
            if known is not None and version == known.version:
                return known
            try:
                root = await load_root(self._store, self._cluster_id, version)
            except ObjectNotFound:
                if attempt == _TRIES_MAX - 1:
                    raise
                continue
            if known is not None and root.moment < known.moment:
                raise ManifestRegressed(known.moment, root.moment)
            return root
        raise AssertionError("the last attempt raises")

    async def _probe(self, known: ManifestRoot) -> ManifestRoot | None:
        """Advance version by version. Return None if there are so many that a LIST is cheaper."""
        for _ in range(_PROBES_MAX):
            try:
                root = await load_root(self._store, self._cluster_id, known.version + 1)
            except ObjectNotFound:
                return known
            if root.moment < known.moment:
                raise ManifestRegressed(known.moment, root.moment)
            known = root
        return None

    async def _newest_version(self) -> int:
        if not self._cluster_id:
            self._cluster_id = await only_cluster(self._store)
            self._sections = SectionReader(self._store, self._cluster_id)
        key = await _first_key(self._store, manifest_prefix(self._cluster_id))
        if key is None:
            raise ManifestNotFound(self._cluster_id)
        parsed = parse_manifest_key(key)
        if parsed is None:
            raise ObjectCorrupt(key, 0, "is not the key of a manifest")
        return parsed[1]

    async def _reload(self) -> None:
        """Refresh an outdated view, because a section was deleted with its version after the grace
        period.
        """
        self._newest_at = -PROBE_S
        await self._refresh()

    # --- partitions -------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicEntry:
        found = self._topics.get(name)
        if found is None:
            raise UnknownPartition(name, None, self._topics)
        return found

    async def _states(self, names: Sequence[str], committed: bool) -> list[PartitionOffsets]:
        topics = [self._topic(name) for name in names]
        await self._load_shards([ref for topic in topics for ref in topic.shards])
        found = [
            (topic, entry)
            for topic in topics
            for ref in topic.shards
            for entry in self._shards[ref].partitions
        ]
        states = [self._state(topic, entry) for topic, entry in found]
        if not committed:
            return states
        stable = await _gather(
            [
                (topic, entry, state.end_offset)
                for (topic, entry), state in zip(found, states, strict=True)
            ],
            self._stable_end,
        )
        return [
            replace(state, last_stable_offset=end)
            for state, end in zip(states, stable, strict=True)
        ]

    def _state(self, topic: TopicEntry, entry: PartitionEntry) -> PartitionOffsets:
        data = entry.data
        _, end = self._tail_of(data)
        stream_id = StreamId(data.stream_id)
        self._check_end(topic.name, entry, end)
        return PartitionOffsets(
            topic.name,
            topic.topic_id,
            entry.partition,
            stream_id,
            entry.leader,
            data.log_start,
            data.committed_end,
            end,
        )

    def _check_end(self, topic: str, entry: PartitionEntry, end: int) -> None:
        """Raise EndInDoubt if a bad slot may contain records after the end. This cannot happen in a
        snapshot.
        """
        if split_name(topic)[1]:
            return
        bad = self._tails.bad_slot_for(entry.leader, StreamId(entry.data.stream_id), end)
        if bad is not None:
            raise EndInDoubt(topic, entry.partition, end, bad.error)

    def _tail_of(self, entry: StreamEntry) -> tuple[list[TailRange], int]:
        """Return the ranges that continue the committed end without a gap, and their end."""
        uploaded_end = self._uploaded_ends.get(entry.stream_id, entry.committed_end)
        if uploaded_end < entry.committed_end:
            return [], max(uploaded_end, entry.log_start)
        position = max(entry.committed_end, entry.log_start)
        tail = joined_tail(position, self._tails.ranges_of(StreamId(entry.stream_id)))
        return tail, tail[-1].end_offset if tail else position

    async def _plan(
        self, wanted: Sequence[OffsetRange], timestamp_from_ms: int | None
    ) -> list[Slice]:
        refs = [self._shard_of(item) for item in wanted]
        await self._load_shards(refs)
        entries = [self._entry(ref, item) for ref, item in zip(refs, wanted, strict=True)]
        for item, entry in zip(wanted, entries, strict=True):
            _, end = self._tail_of(entry.data)
            if item.end_offset > end:
                self._check_end(item.topic, entry, end)
        planned = await self._slices(
            [(item, entry.data) for item, entry in zip(wanted, entries, strict=True)],
            timestamp_from_ms,
        )
        return [part for parts in planned for part in parts]

    async def _slices(
        self,
        wanted: Sequence[tuple[OffsetRange, StreamEntry]],
        timestamp_from_ms: int | None = None,
    ) -> list[list[Slice]]:
        """Plan ranges of data streams or txn streams."""
        pages = [pages_wanted(entry.pages, item, timestamp_from_ms) for item, entry in wanted]
        loaded = await self._load_pages([page for group in pages for page in group])
        slices: list[list[Slice]] = []
        for (item, entry), group in zip(wanted, pages, strict=True):
            tail, end = self._tail_of(entry)
            runs = [*(loaded[page.section] for page in group), entry.inline]
            slices.append(
                plan(
                    item,
                    Source(entry.stream_id, entry.log_start, end, runs, tail),
                    timestamp_from_ms,
                )
            )
        return slices

    # --- transactions -----------------------------------------------------------------------------

    async def _stable_end(self, wanted: tuple[TopicEntry, PartitionEntry, int]) -> int:
        """Return the last stable offset, from the last event below the end of the data."""
        topic, entry, end_offset = wanted
        txn = entry.txn
        _, txn_end = self._tail_of(txn)
        if txn_end <= txn.log_start:
            return end_offset
        known = self._unstable.get(txn.stream_id)
        if known is not None and known[0] == txn_end <= end_offset:
            unstable = known[1]
        else:
            # The txn tail may be ahead of the data tail, which ends at a gap. In this case, the
            # relevant event is not the last one.
            low = txn_end if txn_end <= end_offset else min(txn.committed_end, end_offset)
            item = OffsetRange(topic.name, entry.partition, max(txn.log_start, low - 1), txn_end)
            (slices,) = await self._slices([(item, txn)])
            last = await self._events.last(slices, end_offset)
            unstable = -1 if last is None else last.event.first_unstable_offset
            if txn_end <= end_offset:
                self._unstable[txn.stream_id] = txn_end, unstable
        return end_offset if unstable < 0 else unstable

    async def _aborted(self, wanted: Sequence[OffsetRange]) -> dict[int, list[AbortedTransaction]]:
        refs = [self._shard_of(item) for item in wanted]
        await self._load_shards(refs)
        found: dict[int, list[AbortedTransaction]] = {}
        entries = [self._entry(ref, item) for ref, item in zip(refs, wanted, strict=True)]
        aborted = await _gather(list(zip(wanted, entries, strict=True)), self._aborted_of)
        for entry, transactions in zip(entries, aborted, strict=True):
            found.setdefault(entry.data.stream_id, []).extend(transactions)
        return found

    async def _aborted_of(
        self, wanted: tuple[OffsetRange, PartitionEntry]
    ) -> list[AbortedTransaction]:
        item, entry = wanted
        topic, partition, start, end = item
        txn = entry.txn
        _, data_end = self._tail_of(entry.data)
        _, txn_end = self._tail_of(txn)
        stable = await self._stable_end((self._topic(topic), entry, data_end))
        if start < txn.log_start:
            raise OffsetsLost(topic, partition, start, min(end, txn.log_start), txn.log_start)
        if end > stable:
            raise OffsetsMissing(topic, partition, max(start, stable), end)
        if start >= min(end, txn_end):
            return []
        (slices,) = await self._slices([(OffsetRange(topic, partition, start, txn_end), txn)])
        return await self._events.aborted(slices, start, end)

    async def _plain(self, wanted: Sequence[OffsetRange]) -> frozenset[int]:
        refs = [self._shard_of(item) for item in wanted]
        await self._load_shards(refs)
        entries = [self._entry(ref, item) for ref, item in zip(refs, wanted, strict=True)]
        is_plain = await _gather(list(zip(wanted, entries, strict=True)), self._is_plain)
        found = list(zip(entries, is_plain, strict=True))
        mixed = {entry.data.stream_id for entry, is_so in found if not is_so}
        return frozenset(entry.data.stream_id for entry, _ in found) - mixed

    async def _is_plain(self, wanted: tuple[OffsetRange, PartitionEntry]) -> bool:
        """Return whether no transaction is open at the start and no event follows.

        Every marker creates an event unless an earlier transaction is still open.
        """
        item, entry = wanted
        _, txn_end = self._tail_of(entry.txn)
        if txn_end <= entry.txn.log_start:
            return True
        if txn_end > item.start_offset:
            return False
        _, data_end = self._tail_of(entry.data)
        return await self._stable_end((self._topic(item.topic), entry, data_end)) == data_end

    async def _committed(self, topic: TopicEntry) -> list[CommittedLog]:
        await self._load_shards(topic.shards)
        logs: list[CommittedLog] = []
        for entry in (entry for ref in topic.shards for entry in self._shards[ref].partitions):
            data = entry.data
            loaded = await self._load_pages(data.pages)
            runs = (*(loaded[page.section] for page in data.pages), data.inline)
            logs.append(
                CommittedLog(entry.partition, StreamId(data.stream_id), data.log_start, runs)
            )
        return logs

    def _shard_of(self, item: OffsetRange) -> SectionRef:
        topic = self._topic(item.topic)
        if not 0 <= item.partition < topic.partition_count:
            raise UnknownPartition(item.topic, item.partition)
        return topic.shards[item.partition // PARTITIONS_PER_SHARD]

    def _entry(self, ref: SectionRef, item: OffsetRange) -> PartitionEntry:
        found = next(
            (entry for entry in self._shards[ref].partitions if entry.partition == item.partition),
            None,
        )
        if found is None:
            raise ObjectCorrupt(
                manifest_key(self._cluster_id, ref.version),
                ref.position,
                f"the shard lacks partition {item.partition}",
            )
        return found

    async def _load_shards(self, refs: Sequence[SectionRef]) -> None:
        shards: dict[SectionRef, Shard] = {}

        def take(ref: SectionRef, raw: memoryview, key: str) -> None:
            shards[ref] = codec.decode_shard(raw, ref, key)

        await self._sections.read([ref for ref in refs if ref not in self._shards], take)
        if self._uploaded_only:
            for entry in (entry for shard in shards.values() for entry in shard.partitions):
                await self._find_uploaded_ends(entry)
        self._shards |= shards

    async def _find_uploaded_ends(self, entry: PartitionEntry) -> None:
        """Find the ends of the uploaded data and events of a partition: the first range in a WAL
        store, searched in all pages.

        If events after some offset are missing, the transactions of later records are unknown, so
        the data ends there as well.
        """
        data_end, txn_end = [await self._uploaded_end(part) for part in (entry.data, entry.txn)]
        if txn_end < entry.txn.committed_end:
            data_end = min(data_end, txn_end)
        self._uploaded_ends[entry.data.stream_id] = data_end
        self._uploaded_ends[entry.txn.stream_id] = txn_end

    async def _uploaded_end(self, entry: StreamEntry) -> int:
        loaded = await self._load_pages(entry.pages)
        for run in (*(loaded[page.section] for page in entry.pages), entry.inline):
            for index, key in enumerate(run.keys):
                if key.startswith(WAL_STORE_ROOT) and run.bounds[index + 1] > entry.log_start:
                    return run.bounds[index]
        return entry.committed_end

    async def _load_pages(self, pages: Sequence[PageRef]) -> dict[SectionRef, Entries]:
        """Return the entries of pages, using the cache, which may be smaller than one request."""
        loaded: dict[SectionRef, Entries] = {}
        missing: dict[SectionRef, PageRef] = {}
        for page in pages:
            entries = self._pages.get(page.section)
            if entries is None:
                missing[page.section] = page
            else:
                self._pages.move_to_end(page.section)
                loaded[page.section] = entries

        def take(ref: SectionRef, raw: memoryview, key: str) -> None:
            loaded[ref] = self._pages[ref] = entries = codec.decode_entries(raw, missing[ref], key)
            self._page_entries += len(entries)

        await self._sections.read(list(missing), take)
        while self._page_entries > PAGE_CACHE_ENTRIES_MAX:
            _, dropped = self._pages.popitem(last=False)
            self._page_entries -= len(dropped)
        return loaded


async def _gather(items: Sequence[_K], read: Callable[[_K], Awaitable[_T]]) -> list[_T]:
    """Await `read` for each item, at most `_TXN_READS_MAX` concurrently. Return the results in
    order.
    """
    turns = asyncio.Semaphore(_TXN_READS_MAX)

    async def one(item: _K) -> _T:
        async with turns:
            return await read(item)

    return await asyncio.gather(*(one(item) for item in items))


async def only_cluster(store: ObjectStore) -> str:
    """Return the only cluster that publishes to this store. Raise ManifestNotFound or
    SeveralClusters. Cost: two LISTs.
    """
    found: list[str] = []
    after = ""
    while len(found) < 10:
        key = await _first_key(store, MANIFEST_ROOT, after)
        if key is None:
            break
        name = key.removeprefix(MANIFEST_ROOT).partition("/")[0]
        after = f"{MANIFEST_ROOT}{name}0"  # "0" is the character after the slash
        if parse_manifest_key(key) is not None:
            found.append(name)
    if not found:
        raise ManifestNotFound("")
    if len(found) > 1:
        raise SeveralClusters(found)
    return found[0]


async def _first_key(store: ObjectStore, prefix: str, start_after: str = "") -> str | None:
    return next(
        iter([info.key async for info in store.list(prefix, start_after=start_after, limit=1)]),
        None,
    )
