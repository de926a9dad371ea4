"""Run one examination of a deployment: gather facts, evaluate them, build the report.

Invariants: every step has a deadline; a step that fails leaves its own check `unchecked` and does
not affect the others. A transient state (failover, recovery, move) counts only if two examinations,
`settle_s` apart, find it. The rules are in `checks`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import uuid4

import msgspec

from penstock.base.errors import ExpectedError, StreamError
from penstock.base.ids import WalStoreId
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.load_messages import ProblemLog
from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.doctor import checks as judge
from penstock.deploy.doctor import findings as f
from penstock.deploy.doctor.cluster_facts import check_listeners, query_controllers
from penstock.deploy.doctor.facts import (
    ClockSpan,
    ClusterFacts,
    ListenerFacts,
    QuorumFacts,
    RecordFacts,
    StoreFacts,
)
from penstock.deploy.doctor.failing_partitions import failing, unreadable
from penstock.deploy.doctor.findings import Check, CheckResult
from penstock.deploy.doctor.image_facts import (
    expected_in_manifest,
    found_in_manifest,
    lasting_problems,
    read_cluster,
)
from penstock.deploy.doctor.inventory import (
    Inventory,
    Suspect,
    lost_ranges,
    overdue,
)
from penstock.deploy.doctor.listing import confirm_missing, delete_orphans, list_all
from penstock.deploy.doctor.metadata import LiveMetadata, Metadata, StoredMetadata
from penstock.deploy.doctor.record_scan import read_newest
from penstock.deploy.doctor.report import Report, build_report
from penstock.deploy.doctor.store_facts import (
    broker_clocks,
    check_store,
    manifest_facts,
    newest_manifest,
    read_backup_facts,
    wall_ms,
)
from penstock.deploy.doctor.wal_survey import (
    WalSurvey,
    reach_wal_stores,
    still_lost,
    survey_wals,
)
from penstock.deploy.output import size
from penstock.deploy.table_runner.statuses import enabled_in
from penstock.lake.manifest.table_status import exports_of, read_statuses
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import redact_url
from penstock.stream.format.manifest.model import ManifestRoot
from penstock.stream.wal.wal_store import WalStores
from penstock.stream.wal.wal_store_url import open_stores

STEP_S: Final = 60.0
"""Deadline of a step with several requests, each of which has its own deadline."""

LIST_S: Final = 3_600.0
"""Deadline of the listing, enough for about 20 million objects on S3."""

RECORDS_S: Final = 3_600.0
"""Deadline of reading records, enough for about 1 TB on a fast network."""

MANIFEST_S: Final = 15.0
MANIFEST_POLL_S: Final = 0.5
"""MANIFEST_S: how long a manifest may be older than the examined metadata. MANIFEST_POLL_S: how
often it is read in the meantime.
"""

OVERDUE_MS: Final = 6 * 3_600_000
"""Age from which a deletion is overdue. This is longer than the default grace periods: one minute,
and one hour for uncommitted objects.
"""

STEP_ERRORS: Final = (ObjectStoreError, StreamError, ControllerError, TimeoutError, OSError)

ShowProgress = Callable[[str, int], None]
"""Called frequently with the current step and the number of items processed since the last call."""

Confirm = Callable[[Sequence[Suspect]], bool]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The scope of an examination. store, controllers: empty if not given. delete: whether to
    delete orphans if `confirm` returns True. records: number of the newest offsets of each
    partition to read.
    """

    store: str
    controllers: str
    wal_store: str = ""
    cluster_id: str = ""
    listeners: Collection[str] = ()
    accept: Collection[str] = ()
    objects: bool = True
    delete: bool = False
    older_than_ms: int = 24 * 3_600_000
    older_than: str = "1d"
    settle_s: float = 5.0
    records: int = 0


class Examination:
    """Examines one deployment. Call `run` once."""

    def __init__(
        self, options: DoctorOptions, show_progress: ShowProgress, confirm: Confirm
    ) -> None:
        self._options = options
        self._show_progress = show_progress
        self._confirm = confirm
        self._current_step = ""
        self._problems: dict[Check, str] = {}
        """The reasons why a check could not be performed."""
        self._checks: dict[Check, CheckResult] = {}
        self._stores: WalStores | None = None
        """The stores, if the store works."""
        self._store_facts: StoreFacts | None = None
        self._metadata: Metadata | None = None
        self._quorum: QuorumFacts | None = None
        self._first: ClusterFacts | None = None
        self._first_at = 0.0
        self._cluster: ClusterFacts | None = None
        self._inventory: Inventory | None = None
        self._root: ManifestRoot | None = None
        self._published: frozenset[tuple[object, ...]] = frozenset()
        self._listeners: Sequence[ListenerFacts] | None = None
        self._broker_clocks: list[ClockSpan] = []
        self._orphans: list[Suspect] = []
        self._surveys: list[WalSurvey] = []
        self._wal_stores: list[WalStoreId] = []
        """The WAL stores that this command can open."""
        self._wal_store_problem = ""
        self._deleted = 0

    async def run(self) -> Report:
        options = self._options
        opened = open_stores(options.store, options.wal_store) if options.store else None
        refreshing = asyncio.get_running_loop().create_task(self._refresh_progress())
        try:
            await self._gather(opened)
            await self._judge()
        finally:
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing
            if self._metadata is not None:
                await self._metadata.close()
            if opened is not None:
                await opened.close()
        in_order = [self._checks[check] for check in f.CHECKS if check in self._checks]
        cluster_id = self._cluster.cluster_id if self._cluster else options.cluster_id
        return build_report(cluster_id, int(wall_ms()), in_order, options.accept, self._deleted)

    @property
    def _store(self) -> ObjectStore | None:
        return None if self._stores is None else self._stores.store

    @property
    def _is_live(self) -> bool:
        return self._metadata is not None and self._metadata.is_live

    async def _refresh_progress(self) -> None:
        """Show progress while a step waits."""
        while True:
            await asyncio.sleep(0.2)
            self._show_progress(self._current_step, 0)

    async def _step(
        self, check: Check, step: str, work: Awaitable[_T], deadline_s: float = STEP_S
    ) -> _T | None:
        """Run one step; on failure, record the problem and return None."""
        self._current_step = step
        self._show_progress(step, 0)
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except STEP_ERRORS as error:
            problem = str(error) or f"no response within {deadline_s:.0f} s"
            self._problems.setdefault(check, problem)
            return None

    # --- gather -----------------------------------------------------------------------------------

    async def _gather(self, opened: WalStores | None) -> None:
        options = self._options
        if options.controllers:
            self._quorum = await self._step(
                f.CONTROLLERS, "asking the controllers", query_controllers(options.controllers)
            )
        if opened is not None:
            self._store_facts = await self._step(
                f.STORE,
                "asking the store",
                check_store(opened.store, redact_url(options.store), uuid4().hex),
                deadline_s=4 * STEP_S,
            )
            if self._store_facts is not None and not self._store_facts.error:
                self._stores = opened
        await self._step(f.PARTITIONS, "reading the metadata", self._open_metadata())
        if self._metadata is not None:
            await self._look_first(self._metadata)
            await self._look_again(self._metadata)

    async def _look_first(self, metadata: Metadata) -> None:
        """Gather the first facts: cluster, listeners, backup, manifest, WALs and objects."""
        first = read_cluster(metadata.image, int(wall_ms()))
        self._first, self._first_at = first, asyncio.get_running_loop().time()
        self._published = expected_in_manifest(metadata.image)
        if metadata.is_live:
            self._listeners = await self._step(
                f.LISTENERS, "asking the brokers", check_listeners(first, self._options.listeners)
            )
        stores = self._stores
        if stores is None:
            return
        await self._read_backup_facts(stores.store, first.cluster_id)
        if await self._reach_wal_stores(stores, metadata.image):
            surveys = await self._step(
                f.WALS, "reading the WALs", survey_wals(stores, metadata.image)
            )
            self._surveys = surveys or []
        if self._options.objects:
            listing = self._list(stores.store, metadata)
            await self._step(f.OBJECTS, "listing the objects", listing, LIST_S)

    async def _reach_wal_stores(self, stores: WalStores, image: MetadataImage) -> bool:
        """Return whether the WAL stores of the cluster can be examined. If not, an absent slot
        proves nothing.
        """
        try:
            async with asyncio.timeout(STEP_S):
                await reach_wal_stores(stores, image)
        except (*STEP_ERRORS, ExpectedError) as error:
            self._wal_store_problem = str(error) or f"no response within {STEP_S:.0f} s"
            return False
        self._wal_stores = [listed.store_id for listed in image.nodes.wal_stores()]
        return True

    async def _open_metadata(self) -> None:
        """Read the metadata from the controllers, or from their backup if none responds."""
        responding = self._quorum is not None and any(
            item.status is not None for item in self._quorum.controllers
        )
        if responding:
            live = LiveMetadata(self._options.controllers)
            try:
                await live.start()
            except STEP_ERRORS:
                await live.close()
            else:
                self._metadata = live
                return
        if self._store is None:
            return
        ids = self._store_facts.cluster_ids if self._store_facts else ()
        cluster_id = self._options.cluster_id or (ids[0] if len(ids) == 1 else "")
        if not cluster_id:
            there = (
                f"the store holds clusters {', '.join(ids)}: name one with --cluster-id"
                if ids
                else "the store holds no cluster"
            )
            raise ControllerError(there)
        stored = StoredMetadata(self._store, cluster_id)
        await stored.refresh()
        self._metadata = stored

    async def _read_backup_facts(self, store: ObjectStore, cluster_id: str) -> None:
        """Read the backup and the manifest. This is done before the listing, which may take a long
        time.
        """
        quorum = self._quorum.quorum if self._quorum else None
        committed = int(quorum.committed_offset) if quorum else -1
        facts = await self._step(
            f.BACKUP,
            "looking at the backup",
            read_backup_facts(store, cluster_id, committed, self._store_now_ms()),
        )
        if facts is not None:
            self._checks[f.BACKUP] = judge.backup(facts)
        self._root = await self._step(
            f.MANIFEST, "looking at the manifest", newest_manifest(store, cluster_id)
        )
        if self._root is not None:
            await self._step(
                f.TABLES, "reading the statuses of tables", self._judge_tables(store, self._root)
            )

    async def _judge_tables(self, store: ObjectStore, root: ManifestRoot) -> None:
        enabled = enabled_in(root)
        statuses = await read_statuses(store, root.cluster_id) if enabled else []
        exports = exports_of(enabled, statuses, int(wall_ms()))
        self._checks[f.TABLES] = judge.tables(exports)

    async def _list(self, store: ObjectStore, metadata: Metadata) -> None:
        inventory = Inventory(
            metadata.image.cluster_id,
            lambda: metadata.image,
            self._store_now_ms(),
            self._options.older_than_ms,
            self._wal_stores,
        )
        await list_all(
            store, inventory, lambda count: self._show_progress(self._current_step, count)
        )
        self._inventory = inventory

    async def _look_again(self, metadata: Metadata) -> None:
        """Gather metadata, manifest and the brokers' clocks for the second time."""
        first = self._first
        assert first is not None
        await self._wait_for_transients(metadata, first)
        await self._refresh_metadata(metadata)
        self._surveys = still_lost(self._surveys, metadata.image)
        second = read_cluster(metadata.image, int(wall_ms()))
        self._cluster = lasting_problems(first, second) if metadata.is_live else second
        store = self._store
        if store is None:
            return
        if f.MANIFEST not in self._problems:
            await self._step(
                f.MANIFEST,
                "looking at the manifest again",
                self._read_manifest_again(store, first.cluster_id),
            )
        if self._inventory is not None:
            clocks = await self._step(
                f.CLOCKS,
                "reading the brokers' clocks",
                broker_clocks(store, self._inventory.backlogs),
            )
            self._broker_clocks = clocks or []

    async def _wait_for_transients(self, metadata: Metadata, first: ClusterFacts) -> None:
        """Wait until `settle_s` after the first examination if it found a state that may be
        transient.
        """
        without_response = any(item.problem for item in self._listeners or ())
        if metadata.is_live and (first.may_be_transient or without_response):
            now = asyncio.get_running_loop().time()
            wait_s = self._first_at + self._options.settle_s - now
            self._current_step = "waiting for failovers and moves to finish"
            await asyncio.sleep(max(0.0, wait_s))

    async def _refresh_metadata(self, metadata: Metadata) -> None:
        """Read the metadata again. If this fails, discard the listing, which cannot be evaluated
        without the metadata.
        """
        if metadata.is_live and (self._quorum is None or self._quorum.quorum is None):
            self._problems[f.PARTITIONS] = "the controllers have no leader"
        else:
            await self._step(f.PARTITIONS, "reading the metadata again", metadata.refresh())
        if f.PARTITIONS in self._problems and self._inventory is not None:
            self._inventory = None
            self._problems[f.OBJECTS] = (
                f"the metadata could not be read again: {self._problems[f.PARTITIONS]}"
            )

    def _manifest_is_behind(self) -> bool:
        """Return True if the manifest is older than the first facts, and differs from them."""
        root, first = self._root, self._first
        if root is None or first is None:
            return False
        return (
            self._is_live
            and root.metadata_offset < first.end_offset
            and found_in_manifest(root) != self._published
        )

    async def _read_manifest_again(self, store: ObjectStore, cluster_id: str) -> None:
        """Read the manifest until it contains the metadata of the first examination. Publishing
        takes about one second plus a PUT.
        """
        self._root = await newest_manifest(store, cluster_id)
        now = asyncio.get_running_loop().time
        while self._manifest_is_behind() and now() < self._first_at + MANIFEST_S:
            await asyncio.sleep(MANIFEST_POLL_S)
            self._root = await newest_manifest(store, cluster_id)
        facts = await manifest_facts(
            store, cluster_id, self._root, int(wall_ms()), is_behind=self._manifest_is_behind()
        )
        self._checks[f.MANIFEST] = judge.manifest(facts)

    def _store_now_ms(self) -> int:
        """Return the current time of the store's clock, or None if it is unknown."""
        clock = self._store_facts.clock if self._store_facts else None
        return int(wall_ms() + ((clock.ahead_min_ms + clock.ahead_max_ms) / 2 if clock else 0.0))

    # --- judge ------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        checks, store = self._checks, self._store_facts
        if store is not None:
            cluster_id = self._cluster.cluster_id if self._cluster and self._is_live else ""
            checks[f.STORE] = judge.store(store, cluster_id)
        spans = [store.clock] if store and store.clock else []
        if self._quorum is not None:
            checks[f.CONTROLLERS] = judge.controllers(self._quorum)
            spans += [item.clock for item in self._quorum.controllers if item.clock is not None]
        if spans:
            checks[f.CLOCKS] = judge.clocks([*spans, *self._broker_clocks])
        if self._cluster is not None:
            self._judge_metadata(self._cluster)
        if self._inventory is not None:
            await self._step(
                f.OBJECTS,
                "requesting missing objects by name",
                self._judge_objects(self._inventory),
            )
        if self._options.records and self._metadata is not None and self._store is not None:
            await self._step(
                f.RECORDS, "reading records", self._read_records(self._metadata), RECORDS_S
            )
        for check in f.CHECKS:
            if check is not f.RECORDS or self._options.records:
                checks.setdefault(check, self._unchecked(check))

    def _judge_metadata(self, cluster: ClusterFacts) -> None:
        """Check brokers, partitions and WALs. If the metadata is from a backup, check only WALs,
        because no nodes may be running.
        """
        checks, inventory, is_live = self._checks, self._inventory, self._is_live
        if self._metadata is not None and is_live:
            self._judge_nodes(cluster, self._metadata.image)
        listed = (
            judge.ListedWals(inventory.backlogs, inventory.unknown_wal_slots())
            if inventory is not None
            else None
        )
        if self._wal_store_problem:
            checks[f.WALS] = f.WALS.unchecked(self._wal_store_problem, failed=True)
        elif is_live or listed is not None or self._surveys:
            checks[f.WALS] = judge.wals(
                cluster, listed, self._store_now_ms(), is_live=is_live, surveys=self._surveys
            )
            if self._wal_stores:
                where = f"in WAL store {redact_url(self._options.wal_store)}"
                wals = checks[f.WALS]
                checks[f.WALS] = msgspec.structs.replace(wals, summary=f"{wals.summary}; {where}")

    def _judge_nodes(self, cluster: ClusterFacts, image: MetadataImage) -> None:
        checks, quorum = self._checks, self._quorum
        notes: Mapping[int, str] = quorum.notes if quorum else {}
        problems: Mapping[int, ProblemLog] = quorum.problems if quorum else {}
        checks[f.VERSIONS] = judge.versions(cluster, quorum.controllers if quorum else ())
        if self._listeners is not None:
            checks[f.LISTENERS] = judge.listeners(cluster, self._listeners)
        checks[f.BROKERS] = judge.brokers(cluster, notes)
        checks[f.PARTITIONS] = judge.partitions(
            cluster, int(wall_ms()), failing(image, problems), unreadable(image, problems)
        )
        if quorum is not None:
            checks[f.CLIENTS] = judge.clients(problems)

    async def _judge_objects(self, inventory: Inventory) -> None:
        metadata, store = self._metadata, self._store
        assert metadata is not None
        assert store is not None
        gone = await confirm_missing(store, inventory.missing())
        shorter = inventory.damaged()
        # In a shared store, unknown objects may belong to another cluster.
        self._orphans = [] if inventory.other_clusters else inventory.orphans()
        lost = lost_ranges(metadata.image, [item.object_id for item in gone])
        at_risk = lost_ranges(metadata.image, [item.expected.object_id for item in shorter])
        if self._options.delete:
            await self._delete(metadata, store)
        found = judge.lost(lost) + judge.damaged(shorter, at_risk)
        found += judge.orphans(
            self._orphans, inventory.unnamed_orphan_count, self._options.older_than
        )
        if metadata.is_live and not inventory.lease_count:
            found += judge.deletions(
                overdue(metadata.image, int(wall_ms()), OVERDUE_MS), OVERDUE_MS
            )
        found += judge.leftovers(inventory.staged_old(), inventory.foreign)
        young = (
            f", {inventory.young_count:,} unknown but younger than {self._options.older_than}"
            if inventory.young_count
            else ""
        )
        summary = (
            f"{inventory.object_count:,} in the bucket ({size(inventory.size_bytes)}),"
            f" {len(gone):,} missing{young}"
        )
        self._checks[f.OBJECTS] = f.OBJECTS.result(summary, found)

    async def _read_records(self, metadata: Metadata) -> None:
        image, options = metadata.image, self._options
        facts: list[RecordFacts] = []
        problems: list[str] = []
        offset_count = 0
        for topic in sorted(topic.name for topic in image.topics):
            read = await asyncio.to_thread(
                read_newest,
                options.store,
                options.wal_store,
                image.cluster_id,
                topic,
                options.records,
            )
            facts += read.partitions
            offset_count += read.offsets
            problems += [read.problem] if read.problem else []
            self._show_progress(self._current_step, read.offsets)
        self._checks[f.RECORDS] = judge.records(facts, offset_count, problems)

    async def _delete(self, metadata: Metadata, store: ObjectStore) -> None:
        if not self._orphans:
            return
        if not metadata.is_live:
            self._problems[f.OBJECTS] = "orphans are deleted only while the controllers respond"
            return
        if not self._confirm(self._orphans):
            return
        self._current_step = "deleting orphans"
        self._deleted = await delete_orphans(
            store,
            metadata,
            self._orphans,
            lambda count: self._show_progress("deleting orphans", count),
        )
        self._orphans = self._orphans[self._deleted :]

    def _unchecked(self, check: Check) -> CheckResult:
        problem = self._problems.get(check)
        if problem is not None:
            return check.unchecked(problem, failed=True)
        if check is f.OBJECTS and not self._options.objects:
            return check.unchecked("skipped by --no-objects")
        of_store = {f.STORE, f.WALS, f.BACKUP, f.MANIFEST, f.OBJECTS, f.RECORDS}
        if not self._options.store and check in of_store:
            return check.unchecked("no store was given: --store")
        if not self._options.controllers:
            return check.unchecked("no controller was given: --controller")
        return check.unchecked("its facts could not be gathered; see above")
