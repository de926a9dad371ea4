"""Evaluate the gathered facts, with one function per check.

Invariants: pure; the same facts result in the same findings; a check without its facts is
`unchecked`, never ok. Each limit is a constant with its reason. No facts are gathered here.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Final, NamedTuple

from penstock.controller.api.load_messages import ProblemLog
from penstock.controller.api.messages import QuorumMember
from penstock.deploy.admin.cost import Prices, storage_usd_month
from penstock.deploy.doctor import findings as f
from penstock.deploy.doctor.facts import (
    BackupFacts,
    ClockSpan,
    ClusterFacts,
    ControllerFacts,
    FailingFacts,
    ListenerFacts,
    ManifestFacts,
    QuorumFacts,
    RecordFacts,
    StoreFacts,
    UnreadableFacts,
    WalFacts,
)
from penstock.deploy.doctor.findings import (
    CheckResult,
    Finding,
    Level,
    listed,
    worst,
)
from penstock.deploy.doctor.inventory import Backlog, Damaged, LostRange, Suspect, Suspects
from penstock.deploy.doctor.wal_survey import WalSurvey
from penstock.deploy.output import counted, size
from penstock.lake.manifest.table_status import BEHIND, FAILING, NOT_RUNNING, ExportView
from penstock.stream.format.manifest.lease import LEASES_MAX
from penstock.stream.ports import BrokerIncarnation

FINDINGS_OF_A_KIND_MAX: Final = 100
"""Maximum number of findings of one kind in a check; additional ones add no information."""

SLOW_MS: Final[Mapping[str, tuple[int, str]]] = {
    "PUT": (500, "a produce request waits for at least one PUT"),
    "GET": (500, "reads of old offsets and failovers wait for GETs"),
    "LIST": (2_000, "readers find the newest manifest by a LIST"),
}
"""Limits of latencies in milliseconds, and why each matters. Small requests to S3 Standard take 20
to 200 ms.
"""

CLOCK_OFF_MS: Final = 5_000
CLOCK_FAR_OFF_MS: Final = 60_000
CONTROLLER_LAG_MS: Final = 5_000
"""Maximum acceptable time since a voter had caught up; an election takes about one second."""
FSYNC_MS: Final = 200
OPEN_FAILS_MS: Final = 5_000
"""Failures to open a partition are ignored for this time, because they occur briefly when
partitions move or brokers die.
"""
BACKLOG_SLOTS: Final = 2_000
"""Number of uncommitted slots from which a WAL is reported. Brokers normally have a few hundred:
they upload a block at 64 slots or 30 s, and retry.
"""
BACKLOG_AGE_MS: Final = 300_000
BACKUP_AGE_MS: Final = 30_000
"""Age from which a backup is reported as old. It is written every `metadata.backup.interval.ms`,
one second by default.
"""
BACKUP_OBJECTS: Final = 3_000
"""Number of log objects after the last snapshot from which this is reported; a snapshot is due
after 1,000.
"""
LEASES_SHARE: Final = 0.9


class ListedWals(NamedTuple):
    """WAL slots in the listing. backlogs: uncommitted slots by WAL. unknown: slots of WALs that are
    not in the metadata.
    """

    backlogs: Mapping[BrokerIncarnation, Backlog]
    unknown: Sequence[Suspect]


def store(facts: StoreFacts, cluster_id: str) -> CheckResult:
    """Check the store. cluster_id: from the controllers, or empty."""
    if facts.error:
        return f.STORE.result(
            "cannot be used", [f.STORE_FAILS.found(url=facts.url, error=facts.error.rstrip("."))]
        )
    found: list[Finding] = []
    if facts.ignored:
        found.append(f.NOT_CONDITIONAL.found(url=facts.url, detail=facts.ignored))
    timings: list[str] = []
    for operation, took_ms in (facts.latencies_ms or {}).items():
        limit_ms, matters = SLOW_MS[operation]
        middle = median(took_ms)
        timings.append(f"{operation} {middle:,.0f} ms")
        if middle > limit_ms:
            found.append(
                f.STORE_SLOW.found(
                    operation=operation,
                    median_ms=middle,
                    count=len(took_ms),
                    limit_ms=limit_ms,
                    matters=matters,
                )
            )
    there = facts.cluster_ids
    if cluster_id and cluster_id not in there:
        clusters = f"cluster {listed(there)}" if there else "no cluster at all"
        found.append(f.WRONG_STORE.found(cluster_id=cluster_id, url=facts.url, there=clusters))
    if len(there) > 1:
        found.append(f.SEVERAL_CLUSTERS.found(clusters=listed(there)))
    kind = "conditional" if not facts.ignored else "NOT conditional"
    return f.STORE.result(f"{facts.url}: {kind}; {', '.join(timings) or 'not timed'}", found)


def clocks(spans: Sequence[ClockSpan]) -> CheckResult:
    if not spans:
        return f.CLOCKS.unchecked("no clock could be read")
    found: list[Finding] = []
    for span in spans:
        off_ms = abs(span.off_ms)
        if off_ms < CLOCK_OFF_MS:
            continue
        kind = f.CLOCK_FAR_OFF if off_ms >= CLOCK_FAR_OFF_MS else f.CLOCK_OFF
        direction = "ahead of" if span.off_ms > 0 else "behind"
        found.append(
            kind.found(
                who=span.who, off_s=off_ms / 1_000, direction=direction, reference=span.reference
            )
        )
    return f.CLOCKS.result(
        f"{len(spans)} compared, {len(found)} off by {CLOCK_OFF_MS // 1_000} s or more", found
    )


def controllers(facts: QuorumFacts) -> CheckResult:
    statuses = {item.address: item.status for item in facts.controllers if item.status is not None}
    if not statuses:
        reasons = [f"{address}: {fault}" for address, fault in facts.faults.items()]
        reason = facts.faults.get(facts.addresses) or "; ".join(reasons) or "the reason is unknown"
        finding = f.NO_CONTROLLER.found(address=facts.addresses, reason=reason)
        return f.CONTROLLERS.result("none responds", [finding])
    quorum = facts.quorum
    if quorum is None:
        roles = listed([f"{address}: {status.role}" for address, status in statuses.items()])
        no_leader = f.NO_LEADER.found(
            responding=len(statuses), known=len(facts.controllers), roles=roles
        )
        return f.CONTROLLERS.result("no leader", [no_leader])
    reached = {status.controller_id for status in statuses.values()}
    found = [
        finding
        for member in quorum.members
        for finding in _member_findings(member, is_reached=member.node_id in reached)
    ]
    voters = sum(member.is_voter for member in quorum.members)
    if voters == 1:
        found.append(f.SINGLE_VOTER.found())
    elif voters % 2 == 0:
        found.append(f.EVEN_VOTERS.found(count=voters))
    summary = (
        f"controller {quorum.leader_id} leads {len(quorum.members)} ({counted(voters, 'voter')}),"
        f" metadata offset {quorum.committed_offset:,}"
    )
    return f.CONTROLLERS.result(summary, found)


def _member_findings(member: QuorumMember, *, is_reached: bool) -> Iterator[Finding]:
    node_id, caught_up_ms = member.node_id, member.last_caught_up_ms
    if not is_reached:
        ago = f"; it last fetched from the leader {member.last_fetch_ms / 1_000:,.0f} s ago"
        yield f.CONTROLLER_AWAY.found(
            node_id=node_id,
            address=member.address or "an unknown address",
            last_fetch=ago if member.last_fetch_ms >= 0 else "",
        )
    elif caught_up_ms < 0:
        since = " and has never caught up with the leader"
        yield f.CONTROLLER_LAGS.found(node_id=node_id, lag=member.lag, since=since)
    elif caught_up_ms > CONTROLLER_LAG_MS:
        since = f" and last caught up with the leader {caught_up_ms / 1_000:,.0f} s ago"
        yield f.CONTROLLER_LAGS.found(node_id=node_id, lag=member.lag, since=since)
    if member.fsync_p99_us > FSYNC_MS * 1_000:
        yield f.CONTROLLER_DISK.found(node_id=node_id, fsync_ms=member.fsync_p99_us / 1_000)


def versions(cluster: ClusterFacts, queried_controllers: Sequence[ControllerFacts]) -> CheckResult:
    """Compare the versions of all running nodes."""
    nodes = [
        (f"broker {each.node_id}", each.version) for each in cluster.brokers if not each.fenced
    ]
    statuses = [item.status for item in queried_controllers if item.status is not None]
    nodes += [(f"controller {each.controller_id}", each.version) for each in statuses]
    by_version: dict[str, list[str]] = {}
    for node, version in nodes:
        by_version.setdefault(version or "unknown", []).append(node)
    if len(by_version) <= 1:
        return f.VERSIONS.result(f"{next(iter(by_version), 'none')} everywhere")
    described = "; ".join(
        f"{version} on {listed(names)}" for version, names in sorted(by_version.items())
    )
    return f.VERSIONS.result(
        f"{len(by_version)} different ones", [f.VERSIONS_DIFFER.found(versions=described)]
    )


def brokers(cluster: ClusterFacts, notes: Mapping[int, str]) -> CheckResult:
    """Check the brokers. notes: reasons why the balancer excludes a broker, by node id."""
    alive = [broker for broker in cluster.brokers if not broker.fenced]
    found = [
        f.BROKER_FENCED.found(node_id=broker.node_id) for broker in cluster.brokers if broker.fenced
    ]
    if not alive:
        found.insert(0, f.NO_BROKER.found(registered=len(cluster.brokers)))
    found += [
        f.BROKER_EXCLUDED.found(node_id=broker.node_id, note=notes[broker.node_id])
        for broker in alive
        if notes.get(broker.node_id, "").startswith("is excluded")
    ]
    return f.BROKERS.result(f"{len(alive)} alive of {len(cluster.brokers)} registered", found)


def listeners(cluster: ClusterFacts, requested: Sequence[ListenerFacts]) -> CheckResult:
    """Check the responses of listeners, except for brokers that have died in the meantime."""
    found: list[Finding] = []
    alive = {broker.node_id for broker in cluster.brokers if not broker.fenced}
    requested = [item for item in requested if item.node_id in alive]
    for item in requested:
        if item.problem:
            found.append(
                f.BROKER_AWAY.found(
                    node_id=item.node_id,
                    listener=item.name,
                    address=item.address,
                    problem=item.problem.rstrip("."),
                )
            )
        elif item.responder is not None and item.responder != (item.node_id, cluster.cluster_id):
            other, cluster_id = item.responder
            who = f"broker {other}" if other >= 0 else "another broker"
            if cluster_id != cluster.cluster_id:
                who = f"a broker of cluster {cluster_id}"
            found.append(
                f.BROKER_IS_ANOTHER.found(
                    node_id=item.node_id, listener=item.name, address=item.address, who=who
                )
            )
    return f.LISTENERS.result(
        f"{counted(len(requested), 'address', 'addresses')} checked,"
        f" {len(requested) - len(found)} of them reach the right broker",
        found,
    )


def partitions(
    cluster: ClusterFacts,
    now_ms: int,
    failing: Sequence[FailingFacts] = (),
    unreadable: Sequence[UnreadableFacts] = (),
) -> CheckResult:
    """Check the partitions. failing, unreadable: partitions that brokers report as failing, and
    objects that they report as unreadable.
    """
    found: list[Finding] = []
    if cluster.leaderless:
        names = [f"{topic}-{number}" for topic, number in sorted(cluster.leaderless)]
        found.append(f.LEADERLESS.found(count=len(names), partitions=listed(names)))
    for (topic, number), move in sorted(cluster.hanging.items())[:FINDINGS_OF_A_KIND_MAX]:
        age_s = (now_ms - move.started_ms) / 1_000
        found.append(
            f.MOVE_HANGS.found(
                partition=f"{topic}-{number}", source=move.source, target=move.target, age_s=age_s
            )
        )
    lasting = [item for item in failing if item.for_ms >= OPEN_FAILS_MS]
    found += [_cannot_open(item) for item in lasting[:FINDINGS_OF_A_KIND_MAX]]
    found += [_unreadable(item) for item in unreadable[:FINDINGS_OF_A_KIND_MAX]]
    away = sorted(cluster.moved_away.items())[:FINDINGS_OF_A_KIND_MAX]
    found += [f.LEADERS_AWAY.found(count=count, node_id=node_id) for node_id, count in away]
    summary = (
        f"{cluster.partition_count:,} of {counted(cluster.topic_count, 'topic')};"
        f" {len(cluster.leaderless):,} without a leader, {cluster.moving_count:,} moving"
    )
    if lasting:
        summary += f", {len(lasting):,} cannot open"
    if cluster.deleted_count:
        summary += (
            f"; {counted(cluster.deleted_count, 'deleted topic')}"
            f" ({_priced(cluster.deleted_bytes)}) can come back"
        )
    if cluster.kept_bytes:
        summary += f"; deleted records ({_priced(cluster.kept_bytes)}) can come back"
    if unreadable:
        summary += f"; {counted(len(unreadable), 'object')} cannot be read"
    return f.PARTITIONS.result(summary, found)


def clients(problems: Mapping[int, ProblemLog]) -> CheckResult:
    """List the clients that brokers report as untuned, once each."""
    untuned = {
        (item.client_id, item.host): item
        for of_broker in problems.values()
        for item in of_broker.untuned
    }
    found = [
        f.CLIENT_UNTUNED.found(
            client_id=item.client_id or "without client.id",
            host=item.host,
            settings=item.settings,
            reason=item.reason,
        )
        for _, item in sorted(untuned.items())[:FINDINGS_OF_A_KIND_MAX]
    ]
    return f.CLIENTS.result(f"{counted(len(untuned), 'producer')} could send more", found)


def _priced(size_bytes: int) -> str:
    return f"{size(size_bytes)}, {storage_usd_month(size_bytes, Prices()):,.4f} USD/month"


def _cannot_open(item: FailingFacts) -> Finding:
    return f.CANNOT_OPEN.found(
        partition=f"{item.topic}-{item.partition}",
        node_id=item.node_id,
        tries=item.tries,
        for_s=item.for_ms / 1_000,
        error=_plain(item.error),
    )


def _unreadable(item: UnreadableFacts) -> Finding:
    state = (
        "is missing in the store" if item.kind == "gone" else f"is corrupt ({_plain(item.error)})"
    )
    brokers_ = (
        f"broker{'s' if len(item.node_ids) > 1 else ''}"
        f" {listed([str(node_id) for node_id in item.node_ids])}"
    )
    return f.OBJECT_UNREADABLE.found(
        key=item.key, state=state, reads=item.reads, brokers=brokers_, ranges=listed(item.ranges)
    )


def _plain(error: str) -> str:
    return error.rstrip(".")


WAL_STORE_AHEAD_MS: Final = 600_000
"""Age from which ranges in a WAL store are reported; leaders normally rewrite them within
minutes.
"""


def wals(
    cluster: ClusterFacts,
    listed_wals: ListedWals | None,
    now_ms: int,
    *,
    is_live: bool = True,
    surveys: Sequence[WalSurvey] = (),
) -> CheckResult:
    """Check the WALs. listed_wals: None if the bucket was not listed. now_ms: according to the
    store's clock. is_live: whether brokers are expected to run. surveys: WALs with lost or damaged
    slots.
    """
    found = _lost_slots(surveys)
    backlogs: Mapping[BrokerIncarnation, Backlog] = (
        listed_wals.backlogs if listed_wals is not None else {}
    )
    for wal in sorted(cluster.wals.values() if is_live else (), key=lambda wal: wal.writer):
        backlog = backlogs.get(wal.writer) or Backlog()
        age_ms = now_ms - backlog.oldest_ms if backlog.slots else 0
        if not wal.is_alive:
            found.append(_unrecovered(wal, backlog if listed_wals is not None else None))
        elif backlog.slots >= BACKLOG_SLOTS or age_ms >= BACKLOG_AGE_MS:
            found.append(
                f.WAL_BACKLOG.found(
                    node_id=wal.writer.node_id,
                    slots=backlog.slots,
                    size=size(backlog.size_bytes),
                    age_s=age_ms / 1_000,
                )
            )
    found += [
        f.WAL_OUTSIDE.found(node_id=wal.writer.node_id)
        for wal in cluster.wals.values()
        if is_live and wal.is_alive and wal.is_outside
    ]
    oldest_ms = cluster.wal_store_oldest_ms
    if oldest_ms is not None and now_ms - oldest_ms >= WAL_STORE_AHEAD_MS:
        found.append(
            f.WAL_STORE_AHEAD.found(
                size=size(cluster.wal_store_bytes), age_s=(now_ms - oldest_ms) / 1_000
            )
        )
    if listed_wals is None:
        return f.WALS.result(f"{len(cluster.wals)} running; their slots were not listed", found)
    if listed_wals.unknown:
        found.append(
            f.WAL_UNKNOWN.found(count=len(listed_wals.unknown), example=listed_wals.unknown[0].key)
        )
    uncommitted = sum(backlog.size_bytes for backlog in backlogs.values())
    summary = f"{len(cluster.wals)} running, {size(uncommitted)} not committed"
    if cluster.wal_store_rewritten_bytes:
        kept = size(cluster.wal_store_rewritten_bytes)
        summary += f"; {kept} in the WAL store are rewritten, but kept for reads or leases"
    return f.WALS.result(summary, found)


def _unrecovered(wal: WalFacts, backlog: Backlog | None) -> Finding:
    """Return the finding for a WAL of a dead writer. backlog: None if it was not listed."""
    recoverer = wal.recoverer.node_id
    return f.WAL_WAITS.found(
        node_id=wal.writer.node_id,
        node_epoch=wal.writer.node_epoch,
        waiting=(
            ""
            if backlog is None
            else f"{counted(backlog.slots, 'slot')} ({size(backlog.size_bytes)}) to recover, "
        ),
        recoverer=f"assigned to broker {recoverer}" if recoverer >= 0 else "assigned to no broker",
    )


def _lost_slots(surveys: Sequence[WalSurvey]) -> list[Finding]:
    found: list[Finding] = []
    for survey in surveys:
        for slot in survey.slots[:FINDINGS_OF_A_KIND_MAX]:
            names = [tail.name for tail in survey.partitions if slot.key in tail.keys]
            if survey.is_alive:
                found.append(f.WAL_SLOT_AT_RISK.found(slot=slot.key, node_id=survey.node_id))
            elif names:
                found.append(
                    f.WAL_SLOT_LOST.found(slot=slot.key, count=len(names), partitions=listed(names))
                )
    return found


def backup(facts: BackupFacts) -> CheckResult:
    if facts.error:
        return f.BACKUP.result(
            "cannot be used", [f.BACKUP_DAMAGED.found(error=facts.error.rstrip("."))]
        )
    found: list[Finding] = []
    behind = facts.committed_offset - facts.end_offset if facts.committed_offset >= 0 else 0
    age_ms = facts.now_ms - facts.newest_ms if facts.newest_ms else 0
    if behind > 0 and age_ms >= BACKUP_AGE_MS:
        found.append(f.BACKUP_LAGS.found(count=behind, age_s=age_ms / 1_000))
    if facts.objects_after >= BACKUP_OBJECTS:
        found.append(f.SNAPSHOT_OVERDUE.found(count=facts.objects_after))
    snapshot = (
        f"snapshot of offset {facts.snapshot_offset:,}"
        if facts.snapshot_offset >= 0
        else "no snapshot yet"
    )
    return f.BACKUP.result(
        f"{snapshot}, {counted(facts.objects_after, 'object')} after it, up to offset"
        f" {facts.end_offset:,}",
        found,
    )


def manifest(facts: ManifestFacts) -> CheckResult:
    found: list[Finding] = []
    if not facts.published_ms:
        found.append(f.NO_MANIFEST.found())
    elif facts.is_behind:
        found.append(f.MANIFEST_STALE.found(age_s=(facts.now_ms - facts.published_ms) / 1_000))
    if facts.lease_count >= LEASES_MAX * LEASES_SHARE:
        found.append(
            f.LEASES_MANY.found(
                count=facts.lease_count, limit=LEASES_MAX, prefix=facts.lease_prefix
            )
        )
    newest = f"version {facts.version:,}" if facts.published_ms else "none"
    return f.MANIFEST.result(f"{newest}, {counted(facts.lease_count, 'lease')}", found)


def tables(exports: Sequence[ExportView]) -> CheckResult:
    """Evaluate the exports of all topics that declare a table."""
    found: list[Finding] = []
    absent: list[str] = []
    for export in exports:
        if export.state == NOT_RUNNING:
            absent.append(export.topic)
        elif len(found) == FINDINGS_OF_A_KIND_MAX:
            continue
        elif export.state == FAILING:
            found.append(
                f.TABLE_FAILING.found(topic=export.topic, table=export.table, error=export.error)
            )
        elif export.state == BEHIND:
            found.append(
                f.TABLE_BEHIND.found(
                    topic=export.topic, table=export.table, lag_s=export.lag_ms / 1_000
                )
            )
    if absent:
        found.append(f.TABLES_NOT_EXPORTED.found(topics=listed(absent)))
    return f.TABLES.result(f"exports to tables: {counted(len(exports), 'topic')}", found)


def lost(ranges: Sequence[LostRange]) -> list[Finding]:
    """Return one finding for each partition and stream."""
    found: list[Finding] = []
    for (topic, partition, kind), group in groupby(ranges, key=lambda item: item[:3]):
        if len(found) == FINDINGS_OF_A_KIND_MAX:
            break
        items = list(group)
        keys = list(dict.fromkeys(item.key for item in items))
        found.append(
            f.DATA_LOST.found(
                partition=f"{topic}-{partition}",
                ranges=listed(_merged(items)),
                stream="" if kind == "data" else f" of its {kind} stream",
                keys=f"{listed(keys)} {'is' if len(keys) == 1 else 'are'}",
            )
        )
    return found


def damaged(items: Sequence[Damaged], ranges: Sequence[LostRange]) -> list[Finding]:
    found: list[Finding] = []
    for item in items[:FINDINGS_OF_A_KIND_MAX]:
        expected = item.expected
        names = sorted(
            {f"{part.topic}-{part.partition}" for part in ranges if part.key == expected.key}
        )
        found.append(
            f.OBJECT_DAMAGED.found(
                key=expected.key,
                found_bytes=item.found_bytes,
                expected_bytes=expected.size_bytes,
                partitions=listed(names) or "its partitions",
            )
        )
    return found


def orphans(suspects: Sequence[Suspect], beyond: int, older_than: str) -> list[Finding]:
    """Check the orphans. beyond: number of additional orphans, whose names are unknown."""
    if not suspects:
        return []
    total = sum(suspect.size_bytes for suspect in suspects)
    return [
        f.ORPHANS.found(
            count=len(suspects) + beyond,
            size=size(total),
            older_than=older_than,
            example=suspects[0].key,
        )
    ]


def deletions(overdue_count: int, after_ms: int) -> list[Finding]:
    """Check the number of destroyed objects that were not deleted within after_ms."""
    if not overdue_count:
        return []
    return [f.DELETION_BEHIND.found(count=overdue_count, age_h=after_ms / 3_600_000)]


def leftovers(staged: Sequence[str], foreign: Suspects) -> list[Finding]:
    """Check old staged writes of Spark, and keys of other writers."""
    found: list[Finding] = []
    if staged:
        found.append(f.STAGED_LEFT.found(count=len(staged), age_d=7, example=staged[0]))
    if foreign.count:
        found.append(f.FOREIGN.found(count=foreign.count, example=foreign.items[0].key))
    return found


def records(
    items: Sequence[RecordFacts], offset_count: int, problems: Sequence[str]
) -> CheckResult:
    """Check the results of reading records. problems: reasons why topics could not be read to the
    end.
    """
    found = [
        f.RECORDS_UNREADABLE.found(
            topic=item.topic,
            partition=f"{item.topic}-{item.partition}",
            count=item.count,
            reasons=listed([f"{what} (offset {offset})" for offset, what in item.first]),
        )
        for item in items[:FINDINGS_OF_A_KIND_MAX]
    ]
    summary = (
        f"{counted(offset_count, 'offset')} read, {sum(item.count for item in items):,} unreadable"
    )
    if len(items) > len(found):
        summary += f" in {counted(len(items), 'partition')}"
    checked = f.RECORDS.result(summary, found)
    if not problems:
        return checked
    level = worst((checked.level, Level.UNCHECKED))
    summary += f"; not read to the end: {listed(problems)}"
    return CheckResult(f.RECORDS.name, level, summary, found, failed=True)


def _merged(items: Sequence[LostRange]) -> list[str]:
    """Join adjacent ranges: [0, 5) and [5, 9) become [0, 9)."""
    spans: list[list[int]] = []
    for item in items:
        if spans and item.start_offset <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], item.end_offset)
        else:
            spans.append([item.start_offset, item.end_offset])
    return [f"[{start:,}, {end:,})" for start, end in spans]
