"""One examination of a deployment: gathers in order, lets the judge speak, and puts a report
together.

Invariants: every step has a deadline, and a step that fails leaves its check `unchecked` and the
others alone. What is normal for a moment (a failover, a recovery, a move) counts only if it lasts
from the first look to the second one, `settle_s` later. Must not hold a rule of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import uuid4

from controller.api.errors import ControllerError
from controller.api.load_messages import Troubles
from deploy.doctor import findings as f
from deploy.doctor import judge
from deploy.doctor.cluster_facts import ask_controllers, ask_listeners
from deploy.doctor.facts import ClockSpan, ClusterSeen, ListenerFacts, QuorumFacts, StoreFacts
from deploy.doctor.findings import CheckResult, result, unchecked
from deploy.doctor.inventory import (
    CANDIDATES_MAX,
    Inventory,
    LostRange,
    Suspect,
    lost_ranges,
    overdue,
)
from deploy.doctor.listing import delete_orphans, list_all, really_missing
from deploy.doctor.metadata import LiveMetadata, Metadata, StoredMetadata
from deploy.doctor.report import Report, report
from deploy.doctor.seen import lasting, published, published_by, seen
from deploy.doctor.store_facts import (
    ask_backup,
    ask_store,
    broker_clocks,
    manifest_facts,
    newest_manifest,
    wall_ms,
)
from deploy.doctor.troubles import failing, unreadable
from deploy.doctor.wal_survey import WalSurvey, still_lost, survey_wals
from deploy.output import size
from objectstore.errors import ObjectStoreError
from objectstore.ports import ObjectStore
from objectstore.url import open_store, redact_url
from stream.errors import StreamError
from stream.format.manifest.model import ManifestRoot

STEP_S: Final = 60.0
"""For a step that asks several questions; each has a deadline of its own."""

LIST_S: Final = 3_600.0
"""About 20 million objects on S3."""

MANIFEST_S: Final = 15.0
MANIFEST_POLL_S: Final = 0.5
"""How long a manifest may lack what the metadata had, and how often it is looked at meanwhile."""

OVERDUE_MS: Final = 6 * 3_600_000
"""Longer than the graces by default (a minute; an hour for what was never committed)."""

TROUBLES: Final = (ObjectStoreError, StreamError, ControllerError, TimeoutError, OSError)

Say = Callable[[str, int], None]
"""(what is being done, how much more of it was done), called often."""

Confirm = Callable[[Sequence[Suspect]], bool]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be examined. store, controllers: empty if there is none. delete: asks `confirm`
    before.
    """

    store: str
    controllers: str
    cluster_id: str = ""
    listeners: Collection[str] = ()
    accept: Collection[str] = ()
    objects: bool = True
    delete: bool = False
    older_than_ms: int = 24 * 3_600_000
    older_than: str = "1d"
    settle_s: float = 5.0


@dataclass(slots=True)
class _Known:
    """What was gathered so far. problems: why something was not."""

    store: StoreFacts | None = None
    quorum: QuorumFacts | None = None
    first: ClusterSeen | None = None
    first_at: float = 0.0
    now: ClusterSeen | None = None
    inventory: Inventory | None = None
    root: ManifestRoot | None = None
    published: frozenset[tuple[object, ...]] = frozenset()
    asked: Sequence[ListenerFacts] | None = None
    broker_clocks: list[ClockSpan] = field(default_factory=list[ClockSpan])
    orphans: list[Suspect] = field(default_factory=list[Suspect])
    surveys: list[WalSurvey] = field(default_factory=list[WalSurvey])
    problems: dict[str, str] = field(default_factory=dict[str, str])
    checks: dict[str, CheckResult] = field(default_factory=dict[str, CheckResult])
    deleted: int = 0


class Examination:
    """`run` once."""

    def __init__(self, order: Order, say: Say, confirm: Confirm) -> None:
        self._order = order
        self._say = say
        self._confirm = confirm
        self._known = _Known()
        self._store: ObjectStore | None = None
        self._metadata: Metadata | None = None
        self._doing = ""

    async def run(self) -> Report:
        ticking = asyncio.get_running_loop().create_task(self._tick())
        try:
            if self._order.store:
                self._store = open_store(self._order.store)
            await self._gather()
            await self._judge()
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            if self._metadata is not None:
                await self._metadata.close()
            if self._store is not None:
                await self._store.close()
        known = self._known
        in_order = [known.checks[chapter.name] for chapter in f.CHAPTERS]
        cluster_id = known.now.cluster_id if known.now else self._order.cluster_id
        return report(cluster_id, int(wall_ms()), in_order, self._order.accept, known.deleted)

    async def _tick(self) -> None:
        """So that a step which only waits shows as well."""
        while True:
            await asyncio.sleep(0.2)
            self._say(self._doing, 0)

    async def _step(
        self, check: str, doing: str, work: Awaitable[_T], deadline_s: float = STEP_S
    ) -> _T | None:
        """None, and a problem noted, if it fails."""
        self._doing = doing
        self._say(doing, 0)
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except TROUBLES as error:
            said = str(error) or f"no answer within {deadline_s:.0f} s"
            self._known.problems.setdefault(check, said)
            return None

    # --- gather -----------------------------------------------------------------------------------

    async def _gather(self) -> None:
        known, order = self._known, self._order
        if order.controllers:
            known.quorum = await self._step(
                f.CONTROLLERS, "asking the controllers", ask_controllers(order.controllers)
            )
        if self._store is not None:
            known.store = await self._step(
                f.STORE,
                "asking the store",
                ask_store(self._store, redact_url(order.store), uuid4().hex),
                deadline_s=4 * STEP_S,
            )
        await self._step(f.PARTITIONS, "reading the metadata", self._open_metadata())
        metadata = self._metadata
        if metadata is None:
            return
        known.first, known.first_at = (
            seen(metadata.image, int(wall_ms())),
            asyncio.get_running_loop().time(),
        )
        known.published = published(metadata.image)
        if metadata.is_live:
            known.asked = await self._step(
                f.LISTENERS, "asking the brokers", ask_listeners(known.first, order.listeners)
            )
        await self._ask_backup(known.first.cluster_id)
        if self._store is not None and self._store_works():
            known.surveys = (
                await self._step(
                    f.WALS, "walking the WALs", survey_wals(self._store, metadata.image)
                )
                or []
            )
        if order.objects and self._store_works():
            await self._step(f.OBJECTS, "listing the objects", self._list(metadata), LIST_S)
        await self._settle(metadata)

    async def _open_metadata(self) -> None:
        """Of the controllers; if none answers, of the backup."""
        known = self._known
        answering = known.quorum is not None and any(
            item.status is not None for item in known.quorum.controllers
        )
        if answering:
            live = LiveMetadata(self._order.controllers)
            try:
                await live.start()
            except TROUBLES:
                await live.close()
            else:
                self._metadata = live
                return
        if self._store is None or not self._store_works():
            return
        ids = known.store.cluster_ids if known.store else ()
        cluster_id = self._order.cluster_id or (ids[0] if len(ids) == 1 else "")
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

    def _store_works(self) -> bool:
        return self._known.store is not None and not self._known.store.error

    async def _ask_backup(self, cluster_id: str) -> None:
        """Before the listing, which may take long: lags are about now."""
        known, store = self._known, self._store
        if store is None or not self._store_works():
            return
        quorum = known.quorum.quorum if known.quorum else None
        committed = int(quorum.committed_offset) if quorum else -1
        facts = await self._step(
            f.BACKUP,
            "looking at the backup",
            ask_backup(store, cluster_id, committed, self._store_now_ms()),
        )
        if facts is not None:
            known.checks[f.BACKUP] = judge.backup(facts)
        known.root = await self._step(
            f.MANIFEST, "looking at the manifest", newest_manifest(store, cluster_id)
        )

    async def _list(self, metadata: Metadata) -> None:
        assert self._store is not None
        inventory = Inventory(
            metadata.image.cluster_id,
            lambda: metadata.image,
            self._store_now_ms(),
            self._order.older_than_ms,
        )
        await list_all(self._store, inventory, lambda count: self._say(self._doing, count))
        self._known.inventory = inventory

    async def _settle(self, metadata: Metadata) -> None:
        """The second look."""
        known = self._known
        first = known.first
        assert first is not None
        unanswered = any(item.problem for item in known.asked or ())
        if metadata.is_live and (first.may_be_passing or unanswered):
            wait_s = known.first_at + self._order.settle_s - asyncio.get_running_loop().time()
            self._doing = "waiting: what passes is no finding"
            await asyncio.sleep(max(0.0, wait_s))
        if metadata.is_live and (known.quorum is None or known.quorum.quorum is None):
            known.problems.setdefault(f.PARTITIONS, "nobody leads")
            refreshed = None
        else:
            refreshed = await self._step(
                f.PARTITIONS, "reading the metadata again", _true(metadata.refresh())
            )
        if refreshed is None and known.inventory is not None:
            known.inventory = None
            known.problems[f.OBJECTS] = (
                f"the metadata could not be read again: {known.problems[f.PARTITIONS]}"
            )
        known.surveys = still_lost(known.surveys, metadata.image)
        second = seen(metadata.image, int(wall_ms()))
        known.now = lasting(first, second) if metadata.is_live else second
        if self._store is not None and self._store_works() and f.MANIFEST not in known.problems:
            await self._step(
                f.MANIFEST,
                "looking at the manifest again",
                self._look_at_manifest(self._store, first.cluster_id),
            )
        if known.inventory is not None and self._store is not None:
            clocks = await self._step(
                f.CLOCKS,
                "reading the brokers' clocks",
                broker_clocks(self._store, known.inventory.backlogs),
            )
            known.broker_clocks = clocks or []

    def _manifest_is_behind(self) -> bool:
        """It was written before the first look, and what it must say differs."""
        known = self._known
        root, first = known.root, known.first
        if root is None or first is None:
            return False
        is_live = self._metadata is not None and self._metadata.is_live
        return (
            is_live
            and root.metadata_offset < first.end_offset
            and published_by(root) != known.published
        )

    async def _look_at_manifest(self, store: ObjectStore, cluster_id: str) -> None:
        """It has some time to reach what the first look saw: publishing takes a second, and its
        PUT.
        """
        known = self._known
        known.root = await newest_manifest(store, cluster_id)
        now = asyncio.get_running_loop().time
        while self._manifest_is_behind() and now() < known.first_at + MANIFEST_S:
            await asyncio.sleep(MANIFEST_POLL_S)
            known.root = await newest_manifest(store, cluster_id)
        facts = await manifest_facts(
            store, cluster_id, known.root, int(wall_ms()), is_behind=self._manifest_is_behind()
        )
        known.checks[f.MANIFEST] = judge.manifest(facts)

    def _store_now_ms(self) -> int:
        """By the store's own clock as far as it is known: objects carry its time."""
        clock = self._known.store.clock if self._known.store else None
        return int(wall_ms() + ((clock.ahead_min_ms + clock.ahead_max_ms) / 2 if clock else 0.0))

    # --- judge ------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        known, checks = self._known, self._known.checks
        cluster_id = (
            known.now.cluster_id if known.now and self._metadata and self._metadata.is_live else ""
        )
        if known.store is not None:
            checks[f.STORE] = judge.store(known.store, cluster_id)
        spans = [known.store.clock] if known.store and known.store.clock else []
        if known.quorum is not None:
            checks[f.CONTROLLERS] = judge.controllers(known.quorum)
            spans += [item.clock for item in known.quorum.controllers if item.clock is not None]
        if spans:
            checks[f.CLOCKS] = judge.clocks([*spans, *known.broker_clocks])
        if known.now is not None:
            self._judge_metadata(known.now)
        if known.inventory is not None:
            await self._step(
                f.OBJECTS, "asking for what is missing", self._judge_objects(known.inventory)
            )
        for chapter in f.CHAPTERS:
            checks.setdefault(chapter.name, self._not_checked(chapter.name))

    def _judge_metadata(self, now: ClusterSeen) -> None:
        """Of a backup it says nothing that brokers and leaders are up to: nobody may be alive."""
        known, checks = self._known, self._known.checks
        notes: Mapping[int, str] = known.quorum.notes if known.quorum else {}
        is_live = self._metadata is not None and self._metadata.is_live
        if is_live:
            controllers = known.quorum.controllers if known.quorum else ()
            checks[f.VERSIONS] = judge.versions(now, controllers)
            if known.asked is not None:
                checks[f.LISTENERS] = judge.listeners(now, known.asked)
            checks[f.BROKERS] = judge.brokers(now, notes)
            troubles: Mapping[int, Troubles] = known.quorum.troubles if known.quorum else {}
            assert self._metadata is not None
            image = self._metadata.image
            checks[f.PARTITIONS] = judge.partitions(
                now, int(wall_ms()), failing(image, troubles), unreadable(image, troubles)
            )
        inventory = known.inventory
        found = (
            judge.ListedWals(inventory.backlogs, inventory.wals_of_nobody())
            if inventory is not None
            else None
        )
        if is_live or found is not None or known.surveys:
            checks[f.WALS] = judge.wals(
                now, found, self._store_now_ms(), is_live=is_live, surveys=known.surveys
            )

    async def _judge_objects(self, inventory: Inventory) -> None:
        known, metadata, store = self._known, self._metadata, self._store
        assert metadata is not None
        assert store is not None
        gone = await really_missing(store, inventory.missing())
        shorter = inventory.damaged()
        known.orphans = [] if self._shares_its_store(inventory) else inventory.orphans()
        ranges = lost_ranges(metadata.image, [item.object_id for item in gone])
        at_risk: list[LostRange] = lost_ranges(
            metadata.image, [item.expected.object_id for item in shorter]
        )
        if self._order.delete:
            await self._delete(metadata, store)
        found = judge.lost(ranges) + judge.damaged(shorter, at_risk)
        found += judge.orphans(known.orphans, inventory.orphans_beyond, self._order.older_than)
        if (
            metadata.is_live
            and not inventory.lease_count
            and (late := overdue(metadata.image, int(wall_ms()), OVERDUE_MS))
        ):
            found.append(f.DELETION_BEHIND.found(count=late, age_h=OVERDUE_MS / 3_600_000))
        if staged := inventory.staged_old():
            found.append(f.STAGED_LEFT.found(count=len(staged), age_d=7, example=staged[0]))
        if inventory.foreign.count:
            found.append(
                f.FOREIGN.found(
                    count=inventory.foreign.count, example=inventory.foreign.items[0].key
                )
            )
        young = (
            f", {inventory.young_count:,} unknown but younger than {self._order.older_than}"
            if inventory.young_count
            else ""
        )
        summary = (
            f"{inventory.object_count:,} in the bucket ({size(inventory.size_bytes)}),"
            f" {len(gone):,} missing{young}"
        )
        known.checks[f.OBJECTS] = result(f.OBJECTS, summary, found)

    def _shares_its_store(self, inventory: Inventory) -> bool:
        """Then what one cluster does not know may be the other's."""
        return bool(inventory.other_clusters)

    async def _delete(self, metadata: Metadata, store: ObjectStore) -> None:
        known = self._known
        if not known.orphans:
            return
        if not metadata.is_live:
            known.problems[f.OBJECTS] = "orphans are deleted only while controllers answer"
            return
        if not self._confirm(known.orphans):
            return
        self._doing = "deleting orphans"
        known.deleted = await delete_orphans(
            store, metadata, known.orphans, lambda count: self._say("deleting orphans", count)
        )
        known.orphans = (
            []
            if len(known.orphans) < CANDIDATES_MAX and known.deleted == len(known.orphans)
            else known.orphans[known.deleted :]
        )

    def _not_checked(self, name: str) -> CheckResult:
        problem = self._known.problems.get(name)
        if problem is not None:
            return unchecked(name, problem, failed=True)
        if name == f.OBJECTS and not self._order.objects:
            return unchecked(name, "left out by --no-objects")
        if not self._order.store and name in {f.STORE, f.WALS, f.BACKUP, f.MANIFEST, f.OBJECTS}:
            return unchecked(name, "no store was named: --store")
        if not self._order.controllers:
            return unchecked(name, "no controller was named: --controller")
        return unchecked(name, "what it needs could not be gathered; see above")


async def _true(work: Awaitable[object]) -> bool:
    await work
    return True
