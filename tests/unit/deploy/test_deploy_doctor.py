"""The doctor's findings, one test for each with made-up facts; and the inventory with made-up
listings.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.controller.api.messages import ControllerStatus, QuorumMember, QuorumStatus
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    ClusterRecord,
    ControllerEpoch,
    FrozenTopicRecord,
    MetadataOffset,
    Move,
    NodeRecord,
    ObjectCommitted,
    ObjectDestroyed,
    ObjectPrepared,
    PartitionRecord,
    RangeEntry,
    Record,
    StreamCreated,
    TopicDeleted,
    TopicRecord,
    WalEnded,
    WalRecord,
)
from penstock.deploy.doctor import checks as judge
from penstock.deploy.doctor.facts import (
    BackupFacts,
    BrokerFacts,
    ClockSpan,
    ClusterFacts,
    ControllerFacts,
    ListenerFacts,
    ManifestFacts,
    MoveFacts,
    QuorumFacts,
    StoreFacts,
    WalFacts,
)
from penstock.deploy.doctor.findings import KINDS, CheckResult, Level
from penstock.deploy.doctor.image_facts import expected_in_manifest, lasting_problems, read_cluster
from penstock.deploy.doctor.inventory import (
    PARTS,
    Backlog,
    Damaged,
    Expected,
    Inventory,
    LostRange,
    Suspect,
    is_unknown,
    lost_ranges,
    overdue,
)
from penstock.deploy.doctor.listing import confirm_missing, delete_orphans
from penstock.deploy.doctor.report import build_report
from penstock.deploy.doctor.wal_survey import (
    LostSlot,
    LostTail,
    WalSurvey,
    still_lost,
)
from penstock.lake.manifest.table_status import ExportView
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import DELETE_BATCH_COUNT, ObjectInfo
from penstock.stream.format.keys import data_key, wal_key
from penstock.stream.format.layout import HEADER_BYTES
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from tools.reference.doctor import as_markdown

NOW_MS = 1_800_000_000_000
ROOT = Path(__file__).resolve().parents[3]
ONE, TWO, DEAD = (BrokerIncarnation(NodeId(number), NodeEpoch(number)) for number in (1, 2, 3))
NOBODY = BrokerIncarnation(NodeId(-1), NodeEpoch(-1))
TOPIC_ID = UUID(int=7)

BROKERS = tuple(
    BrokerFacts(number, number, False, "1.0", (("first", f"b{number}:9092"),)) for number in (1, 2)
)
SEEN = ClusterFacts(
    "c", 100, BROKERS, 1, 3, 5, leaderless=frozenset(), hanging={}, moving_count=0,
    wals={ONE: WalFacts(ONE, 5, True, NOBODY), TWO: WalFacts(TWO, 5, True, NOBODY)},
)  # fmt: skip
MEMBERS = [
    QuorumMember(
        node_id=number,
        address=f"c{number}:9093",
        directory_id="d",
        is_voter=True,
        log_end=9,
        lag=0,
        last_fetch_ms=10,
        last_caught_up_ms=10,
        fsync_p99_us=900,
    )
    for number in range(3)
]
EPOCH, OFFSET = ControllerEpoch(1), MetadataOffset(100)
QUORUM = QuorumStatus(
    cluster_id="c",
    leader_id=0,
    leader_epoch=EPOCH,
    high_watermark=9,
    log_end=9,
    committed_offset=OFFSET,
    version=1,
    is_changing=False,
    members=MEMBERS,
)
STATUSES = [
    ControllerStatus(
        cluster_id="c",
        controller_id=number,
        controller_epoch=EPOCH,
        committed_offset=OFFSET,
        active=number == 0,
        role="voter",
        version="1.0",
    )
    for number in range(3)
]
CONTROLLERS = QuorumFacts(
    "c0:9093",
    tuple(ControllerFacts(f"c{number}:9093", STATUSES[number]) for number in range(3)),
    QUORUM,
    {},
)
STORE = StoreFacts("s3://b", latencies_ms={"PUT": (20.0, 30.0, 900.0)}, cluster_ids=("c",))
BACKUP = BackupFacts("", 100, 100, NOW_MS - 90_000, -1, 12, NOW_MS)
MANIFEST = ManifestFacts(NOW_MS - 90_000, 7, False, 3, "leases/c/", NOW_MS)


def sentences(check: CheckResult) -> dict[str, str]:
    """Return the sentences by code; check the kind of each finding."""
    for finding in check.findings:
        assert "{" not in finding.sentence + finding.mend.replace("{id}", "")
        assert KINDS[finding.code].level is finding.level
    return {finding.code: finding.sentence for finding in check.findings}


def test_a_healthy_cluster_has_no_findings() -> None:
    checks = [
        judge.store(STORE, "c"),
        judge.clocks([ClockSpan("x", "y", -100.0, 900.0)]),
        judge.controllers(CONTROLLERS),
        judge.versions(SEEN, CONTROLLERS.controllers),
        judge.brokers(SEEN, {1: "is leaving"}),
        judge.listeners(SEEN, [ListenerFacts(1, "first", "b1:9092", responder=(1, "c"))]),
        judge.partitions(SEEN, NOW_MS),
        judge.wals(SEEN, listed_wals({ONE: Backlog(100, 1 << 20, NOW_MS - 30_000)}), NOW_MS),
        judge.backup(BACKUP),
        judge.manifest(MANIFEST),
    ]
    assert [check.level for check in checks] == [Level.OK] * len(checks)
    assert (judge.lost([]), judge.damaged([], []), judge.orphans([], 0, "1d")) == ([], [], [])


# --- each finding ---------------------------------------------------------------------------------


def test_findings_about_the_store() -> None:
    assert sentences(judge.store(StoreFacts("s3://b", error="no bucket."), "c")) == {
        "store-fails": "The store s3://b cannot be used from this machine: no bucket."
    }
    assert (
        "replaced an object"
        in sentences(judge.store(replace(STORE, ignored="a PUT replaced an object"), "c"))[
            "store-not-conditional"
        ]
    )
    slow = sentences(judge.store(replace(STORE, latencies_ms={"PUT": (700.0, 600.0, 10.0)}), "c"))[
        "store-slow"
    ]
    assert slow.startswith("A small PUT takes 600 ms (median of 3), more than 500 ms")
    assert list(sentences(judge.store(STORE, "another"))) == ["store-of-another-cluster"]
    assert list(sentences(judge.store(replace(STORE, cluster_ids=("c", "d")), "c"))) == [
        "several-clusters"
    ]


@pytest.mark.parametrize(
    ("span", "found"),
    [
        ((-4_000.0, -1_000.0), {}),
        ((-90_000.0, 90_000.0), {}),
        (
            (5_500.0, 6_000.0),
            {"clock-off": "The clock of broker 1 is 6 s ahead of that of the store."},
        ),
        (
            (-9_000.0, -7_000.0),
            {"clock-off": "The clock of broker 1 is 7 s behind that of the store."},
        ),
    ],
)
def test_only_certain_clock_differences_are_findings(
    span: tuple[float, float], found: dict[str, str]
) -> None:
    assert sentences(judge.clocks([ClockSpan("broker 1", "the store", *span)])) == found


def test_a_clock_that_is_a_minute_off_is_an_error() -> None:
    check = judge.clocks([ClockSpan("controller 0", "this machine", 60_000.0, 61_000.0)])
    assert (check.level, list(sentences(check))) == (Level.FAIL, ["clock-far-off"])
    assert judge.clocks([]).level is Level.UNCHECKED


def quorum_of(**changes: object) -> QuorumFacts:
    """Return the quorum with these changes of its last member."""
    members = [*MEMBERS[:2], msgspec.structs.replace(MEMBERS[2], **changes)]
    return replace(CONTROLLERS, quorum=msgspec.structs.replace(QUORUM, members=members))


def test_findings_about_controllers() -> None:
    away = replace(
        CONTROLLERS, controllers=(*CONTROLLERS.controllers[:2], ControllerFacts("c2:9093", None))
    )
    assert sentences(judge.controllers(away)) == {
        "controller-unreachable": (
            "Controller 2 at c2:9093 does not respond; it last fetched from the leader 0 s ago."
        )
    }
    lags = sentences(judge.controllers(quorum_of(lag=70, last_caught_up_ms=9_000)))
    assert lags == {
        "controller-lags": (
            "Controller 2 lacks 70 entries of the metadata log and last caught up with the leader"
            " 9 s ago."
        )
    }
    assert (
        "never caught up"
        in sentences(judge.controllers(quorum_of(last_caught_up_ms=-1)))["controller-lags"]
    )
    assert list(sentences(judge.controllers(quorum_of(fsync_p99_us=250_000)))) == [
        "controller-disk-slow"
    ]
    assert list(sentences(judge.controllers(quorum_of(is_voter=False)))) == ["even-voters"]
    nobody = sentences(judge.controllers(replace(away, quorum=None)))["no-quorum-leader"]
    assert (
        nobody == "The controllers have no leader: 2 of 3 respond (c0:9093: voter, c1:9093: voter)."
    )
    silent = replace(CONTROLLERS, controllers=(ControllerFacts("c0:9093", None),), quorum=None)
    assert list(sentences(judge.controllers(silent))) == ["no-controller"]
    alone = replace(silent, faults={"c0:9093": "it is a broker"})
    both = replace(
        alone, addresses="c0:9093,c1:9093", faults={**alone.faults, "c1:9093": "it is silent"}
    )
    assert [sentences(judge.controllers(facts))["no-controller"] for facts in (alone, both)] == [
        "No controller responds at c0:9093: it is a broker.",
        "No controller responds at c0:9093,c1:9093:"
        " c0:9093: it is a broker; c1:9093: it is silent.",
    ]


def test_a_single_voter_is_a_hint() -> None:
    alone = replace(CONTROLLERS, quorum=msgspec.structs.replace(QUORUM, members=MEMBERS[:1]))
    check = judge.controllers(alone)
    assert (check.level, list(sentences(check))) == (Level.HINT, ["single-voter"])


def test_versions_of_live_brokers_and_responding_controllers_are_compared() -> None:
    older = (replace(BROKERS[0], version="0.9"), replace(BROKERS[1], version="0.8", fenced=True))
    found = sentences(judge.versions(replace(SEEN, brokers=older), CONTROLLERS.controllers))
    assert found == {
        "versions-differ": (
            "Nodes run different versions: 0.9 on broker 1; 1.0 on controller 0, controller 1,"
            " controller 2."
        )
    }


def test_findings_about_brokers() -> None:
    fenced = replace(SEEN, brokers=(BROKERS[0], replace(BROKERS[1], fenced=True)))
    assert list(sentences(judge.brokers(fenced, {}))) == ["broker-fenced"]
    assert list(sentences(judge.brokers(replace(SEEN, brokers=()), {}))) == ["no-broker"]
    excluded = sentences(judge.brokers(SEEN, {2: "is excluded: it responds in 900 ms"}))
    assert excluded == {
        "broker-excluded": (
            "Broker 2 gets no partitions to lead: it is excluded: it responds in 900 ms."
        )
    }


def test_findings_about_listeners_of_live_nodes() -> None:
    requested = [
        ListenerFacts(1, "first", "b1:9092", problem="nobody accepts connections there"),
        ListenerFacts(2, "EXTERNAL", "lb:9092", responder=(1, "c")),
        ListenerFacts(9, "first", "b9:9092", problem="left meanwhile"),
    ]
    found = sentences(judge.listeners(SEEN, requested))
    assert found["broker-unreachable"].startswith(
        "Broker 1 cannot be reached at b1:9092, where clients of its listener first are sent"
    )
    assert (
        found["broker-is-another"]
        == "lb:9092 is advertised by broker 2 (listener EXTERNAL), but broker 1 responds there."
    )
    stranger = sentences(
        judge.listeners(SEEN, [ListenerFacts(2, "first", "b2:9092", responder=(2, "d"))])
    )
    assert "a broker of cluster d responds there" in stranger["broker-is-another"]


def test_findings_about_partitions() -> None:
    names = frozenset(("t", number) for number in range(7))
    assert sentences(judge.partitions(replace(SEEN, leaderless=names), NOW_MS)) == {
        "partition-without-leader": (
            "7 partitions have no live leader: t-0, t-1, t-2, t-3, t-4 and 2 more."
        )
    }
    hanging = replace(SEEN, hanging={("t", 1): MoveFacts(1, 2, NOW_MS - 30_000)})
    assert sentences(judge.partitions(hanging, NOW_MS)) == {
        "move-hangs": "t-1 has been moving from broker 1 to broker 2 for 30 s, past its deadline."
    }
    away = judge.partitions(replace(SEEN, moved_away={2: 1_200}), NOW_MS)
    assert (away.level, sentences(away)) == (
        Level.HINT,
        {
            "preferred-leaders-away": (
                "Partitions that prefer broker 2, but have another leader: 1,200."
            )
        },
    )


def listed_wals(
    backlogs: Mapping[BrokerIncarnation, Backlog], *unknown: Suspect
) -> judge.ListedWals:
    return judge.ListedWals(backlogs, unknown)


def test_findings_about_wals() -> None:
    dead = replace(SEEN, wals={DEAD: WalFacts(DEAD, 5, False, TWO)})
    waits = listed_wals({DEAD: Backlog(4, 2_048, NOW_MS)})
    found = sentences(judge.wals(dead, waits, NOW_MS))["wal-not-recovered"]
    assert found.endswith("process has ended: 4 slots (2.0 KiB) to recover, assigned to broker 2.")
    assert sentences(judge.wals(dead, None, NOW_MS))["wal-not-recovered"].endswith(
        "process has ended: assigned to broker 2."
    )
    many = {ONE: Backlog(judge.BACKLOG_SLOTS, 1, NOW_MS)}
    old = {ONE: Backlog(1, 1, NOW_MS - judge.BACKLOG_AGE_MS)}
    assert [
        list(sentences(judge.wals(SEEN, listed_wals(backlogs), NOW_MS))) for backlogs in (many, old)
    ] == [["wal-backlog"]] * 2
    assert list(
        sentences(judge.wals(SEEN, listed_wals({}, Suspect("wal/9/9/0", 1, 1)), NOW_MS))
    ) == ["wal-of-unknown-broker"]
    assert sentences(judge.wals(dead, waits, NOW_MS, is_live=False)) == {}


@pytest.mark.parametrize(
    ("is_outside", "is_alive", "kinds"),
    [
        (True, True, ["wal-outside-wal-store"]),
        (False, True, []),
        (True, False, ["wal-not-recovered"]),
    ],
)
def test_a_wal_outside_of_the_wal_store_is_reported(
    is_outside: bool, is_alive: bool, kinds: list[str]
) -> None:
    wal = WalFacts(ONE, 5, is_alive, NOBODY, is_outside=is_outside)
    result = judge.wals(replace(SEEN, wals={ONE: wal}), None, 0)
    assert list(sentences(result)) == kinds


@pytest.mark.parametrize(
    ("oldest_ms", "kinds"),
    [
        (None, []),
        (NOW_MS - judge.WAL_STORE_AHEAD_MS + 1, []),
        (NOW_MS - judge.WAL_STORE_AHEAD_MS, ["store-behind-wal-store"]),
    ],
)
def test_ranges_that_stay_in_the_wal_store_are_reported(
    oldest_ms: int | None, kinds: list[str]
) -> None:
    cluster = replace(SEEN, wal_store_bytes=2_048, wal_store_oldest_ms=oldest_ms)
    found = sentences(judge.wals(lasting_problems(cluster, cluster), None, NOW_MS))
    assert list(found) == kinds
    assert not kinds or "2.0 KiB of committed records" in found[kinds[0]]


def test_findings_about_lost_slots_of_live_and_dead_writers() -> None:
    key, other = (wal_key(DEAD, WalSequence(slot), IN_STORE) for slot in (7, 8))
    slots = [LostSlot(7, key, "gone", False), LostSlot(8, other, "gone", False)]
    tails = [LostTail("t", number, 5, None, (key,)) for number in (0, 1)]
    dead = WalSurvey(DEAD.node_id, DEAD.node_epoch, False, slots, tails)
    found = sentences(judge.wals(SEEN, None, NOW_MS, surveys=[dead]))
    assert found == {
        "wal-slot-lost": (
            f"WAL slot {key} of a dead broker is lost or damaged; 2 partitions wait for it:"
            " t-0, t-1."
        )
    }
    alive = msgspec.structs.replace(dead, is_alive=True, slots=slots[:1])
    assert list(sentences(judge.wals(SEEN, None, NOW_MS, surveys=[alive]))) == ["wal-slot-at-risk"]


def test_a_range_committed_before_the_second_lookup_was_not_lost() -> None:
    image = MetadataImage()
    image.apply_all([WalRecord(DEAD.node_id, DEAD.node_epoch, WalSequence(8))])
    slots = [
        LostSlot(slot, wal_key(DEAD, WalSequence(slot), IN_STORE), "gone", False) for slot in (7, 8)
    ]
    tails = [LostTail("t", number, 5, None, (slot.key,)) for number, slot in enumerate(slots)]
    (left,) = still_lost([WalSurvey(DEAD.node_id, DEAD.node_epoch, True, slots, tails)], image)
    assert (left.slots, left.partitions) == (slots[1:], tails[1:])
    image.apply_all([WalEnded(DEAD.node_id, DEAD.node_epoch, WalSequence(9))])
    assert still_lost([left], image) == []


def test_findings_about_backup_and_manifest() -> None:
    assert list(sentences(judge.backup(BackupFacts(error="a gap")))) == ["backup-damaged"]
    assert list(sentences(judge.backup(replace(BACKUP, end_offset=90)))) == ["backup-lags"]
    assert sentences(judge.backup(replace(BACKUP, end_offset=90, newest_ms=NOW_MS - 500))) == {}
    assert list(sentences(judge.backup(replace(BACKUP, objects_after=judge.BACKUP_OBJECTS)))) == [
        "snapshot-overdue"
    ]
    assert list(sentences(judge.manifest(replace(MANIFEST, is_behind=True)))) == ["manifest-stale"]
    assert judge.manifest(replace(MANIFEST, published_ms=0)).level is Level.HINT
    assert list(sentences(judge.manifest(replace(MANIFEST, lease_count=900)))) == ["leases-many"]


def test_findings_about_tables() -> None:
    states = ("up to date", "waiting", "failing", "behind", "not running", "not running")
    exports = [
        ExportView(
            topic=f"t{number}", table=f"t_{number}", state=state, error="no.", lag_ms=300_000
        )
        for number, state in enumerate(states)
    ]
    found = judge.tables(exports)
    assert sentences(found) == {
        "table-failing": "The export of topic t2 to table t_2 fails: no.",
        "table-behind": "Table t_3 of topic t3 lacks records of the last 300 s, more than two"
        " commit intervals and a minute.",
        "tables-not-exported": "No table runner exports t4, t5, although penstock.table.enable is"
        " true.",
    }
    assert found.summary == "exports to tables: 6 topics"
    assert judge.tables([]).level is Level.OK


def test_findings_about_objects() -> None:
    lost = [
        LostRange("t", 0, "data", 0, 5, "k1"),
        LostRange("t", 0, "data", 5, 9, "k2"),
        LostRange("t", 0, "meta", 3, 4, "k3"),
    ]
    assert [finding.sentence for finding in judge.lost(lost)] == [
        "t-0 has lost offsets [0, 9): k1, k2 are not in the store.",
        "t-0 has lost offsets [3, 4) of its meta stream: k3 is not in the store.",
    ]
    (damaged,) = judge.damaged([Damaged(Expected("k1", ObjectId(1), 10), 9)], lost)
    assert damaged.sentence == "k1 has 9 bytes instead of 10: t-0 may have lost records."
    (orphans,) = judge.orphans([Suspect("data/x", 1_024, 0)], 4, "1d")
    assert (
        orphans.sentence
        == "5 objects (1.0 KiB) older than 1d are orphans, to which nothing refers, such as data/x."
    )


def test_a_count_of_one_is_singular() -> None:
    values: dict[str, str | int | float] = dict.fromkeys(
        ("count", "lag", "registered", "slots", "tries"), 1
    )
    values |= {"partition": "t-0", "partitions": "t-0", "topic": "t", "slot": "wal/1/1/0"}
    values |= {"node_id": 3, "age_s": 9.0, "age_h": 3.0, "age_d": 7, "size": "9 B", "since": ""}
    values |= {"example": "x", "reasons": "corrupt", "for_s": 9.0, "error": "gone"}
    expected = {
        "controller-lags": "Controller 3 lacks 1 entry of the metadata log.",
        "no-broker": "No broker is alive; 1 is registered.",
        "partition-without-leader": "1 partition has no live leader: t-0.",
        "partition-cannot-open": (
            "t-0 does not open on broker 3, which leads it: 1 attempt in 9 s; the last one failed"
            " with: gone."
        ),
        "wal-slot-lost": (
            "WAL slot wal/1/1/0 of a dead broker is lost or damaged; 1 partition waits for it: t-0."
        ),
        "wal-backlog": "Broker 3 has 1 uncommitted WAL slot (9 B); the oldest is 9 s old.",
        "wal-of-unknown-broker": (
            "1 object below wal/ belongs to a broker epoch that is not in the metadata, such as x."
        ),
        "backup-lags": (
            "The metadata backup ends 1 record before the committed offset, and nothing was written"
            " to it for 9 s."
        ),
        "deletion-behind": (
            "1 object was destroyed more than 3 h ago and is still in the store, although no lease"
            " holds it."
        ),
        "staged-left": "1 staged write of Spark is older than 7 days, such as x.",
        "foreign-keys": (
            "1 key below Penstock's prefixes is not from Penstock, such as x; it is never deleted."
        ),
        "records-unreadable": "t-0 has 1 offset whose record cannot be read: corrupt.",
    }
    assert {code: KINDS[code].found(**values).sentence for code in expected} == expected
    dead = replace(SEEN, wals={DEAD: WalFacts(DEAD, 5, False, TWO)})
    waits = sentences(judge.wals(dead, listed_wals({DEAD: Backlog(1, 9, NOW_MS)}), NOW_MS))
    assert "1 slot (9 B) to recover, assigned" in waits["wal-not-recovered"]
    assert judge.manifest(replace(MANIFEST, lease_count=1)).summary.endswith(", 1 lease")


def test_every_finding_is_documented_and_the_generated_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reference" / "doctor.md").read_text() == as_markdown(), (
        "python -m tools.reference.doctor > docs/reference/doctor.md"
    )
    assert all(f"`{code}`" in as_markdown() for code in KINDS)


# --- the report -----------------------------------------------------------------------------------


def test_exit_codes() -> None:
    ok, warn = judge.backup(BACKUP), judge.manifest(replace(MANIFEST, is_behind=True))
    hint = judge.manifest(replace(MANIFEST, published_ms=0))
    skipped, failed = (
        CheckResult("objects", Level.UNCHECKED, "-"),
        CheckResult("objects", Level.UNCHECKED, "-", failed=True),
    )

    def codes(*checks: CheckResult, accept: frozenset[str] = frozenset()) -> tuple[int, str]:
        found = build_report("c", NOW_MS, checks, accept)
        return found.exit_code, found.verdict

    assert codes(ok, hint) == (0, "no problem found")
    assert codes(ok, skipped) == (0, "no problem found; not checked: objects")
    assert codes(ok, failed) == (2, "no problem found; not checked: objects")
    assert codes(warn, failed) == (1, "1 finding needs action; not checked: objects")
    assert codes(warn, accept=frozenset({"manifest-stale"})) == (0, "no problem found")


# --- facts from an image --------------------------------------------------------------------------


def image_of(*records: Record) -> MetadataImage:
    image = MetadataImage()
    image.apply_all((ClusterRecord("c"), *records))
    return image


def node(number: int, *, fenced: bool = False) -> NodeRecord:
    return NodeRecord(
        NodeId(number),
        NodeEpoch(number),
        UUID(int=number),
        "",
        9092,
        "::1" if number == 2 else "10.0.0.1",
        None,
        fenced,
        version="1.0",
    )


def partition(number: int, leader: int, move: Move | None = None) -> PartitionRecord:
    return PartitionRecord(
        TOPIC_ID,
        number,
        (NodeId(1),),
        NodeId(leader),
        NodeEpoch(leader),
        StreamEpoch(1),
        StreamId(3 * number),
        StreamId(3 * number + 1),
        StreamId(3 * number + 2),
        (NodeId(1),) if move else None,
        move,
    )


MOVE = Move(NodeId(1), NodeId(2), Millis(NOW_MS - 30_000), Millis(NOW_MS - 20_000))


def test_partitions_of_dead_leaders_and_overdue_moves_are_found() -> None:
    records: list[Record] = [
        node(1),
        node(2, fenced=True),
        TopicRecord(TOPIC_ID, "t"),
        partition(0, 1),
        partition(1, 2),
        partition(2, -1, MOVE),
    ]
    looked = read_cluster(
        image_of(*records, WalRecord(NodeId(2), NodeEpoch(2), WalSequence(0))), NOW_MS
    )
    assert looked.leaderless == {("t", 1)}
    assert looked.hanging == {("t", 2): MoveFacts(1, 2, NOW_MS - 30_000)}
    assert [listener for broker in looked.brokers for listener in broker.listeners] == [
        ("first", "10.0.0.1:9092"),
        ("first", "[::1]:9092"),
    ]
    assert looked.may_be_transient
    assert not read_cluster(
        image_of(node(1), TopicRecord(TOPIC_ID, "t"), partition(0, 1)), NOW_MS
    ).may_be_transient


def test_partitions_not_led_by_their_preferred_leader_are_counted() -> None:
    topic = TopicRecord(TOPIC_ID, "t")
    led_by_2 = [partition(0, 2), partition(1, 2), partition(2, 1)]
    assert read_cluster(image_of(node(1), node(2), topic, *led_by_2), NOW_MS).moved_away == {1: 2}
    for unable in (node(1, fenced=True), msgspec.structs.replace(node(1), draining=True)):
        assert not read_cluster(image_of(unable, node(2), topic, *led_by_2), NOW_MS).moved_away


def test_deleted_topics_that_can_be_restored_are_listed_without_a_finding() -> None:
    kept = (RangeEntry(StreamId(1), Offset(0), Offset(9), 9, 3_000, Millis(0)),)
    looked = read_cluster(
        image_of(
            node(1),
            TopicRecord(TOPIC_ID, "t"),
            partition(0, 1),
            StreamCreated(StreamId(1), TOPIC_ID, 0, "data"),
            ObjectCommitted(ObjectId(1), data_key(ObjectId(1)), 1, 3_000, Millis(0), kept),
            TopicDeleted(TOPIC_ID, Millis(0), 60_000, MetadataOffset(0)),
        ),
        NOW_MS,
    )
    assert (looked.topic_count, looked.deleted_count, looked.deleted_bytes) == (0, 1, 3_000)
    assert not looked.may_be_transient
    found = judge.partitions(lasting_problems(looked, looked), NOW_MS)
    assert found.level is Level.OK
    assert found.summary.endswith("; 1 deleted topic (2.9 KiB, 0.0000 USD/month) can come back")


def test_a_transient_state_between_two_samples_is_not_a_finding() -> None:
    wal = WalFacts(DEAD, 0, False, NOBODY)
    move = MoveFacts(1, 2, 0)
    first = replace(
        SEEN,
        leaderless=frozenset({("t", 0), ("t", 1)}),
        hanging={("t", 2): move, ("t", 3): move},
        wals={DEAD: wal},
    )
    second = replace(
        SEEN,
        leaderless=frozenset({("t", 1), ("t", 5)}),
        hanging={("t", 2): MoveFacts(1, 2, 9), ("t", 3): move},
    )
    found = lasting_problems(
        first, replace(second, wals={DEAD: wal, ONE: WalFacts(ONE, 0, False, NOBODY)})
    )
    assert found.leaderless == frozenset({("t", 1)})
    assert (dict(found.hanging), list(found.wals)) == ({("t", 3): move}, [DEAD])


# --- the inventory --------------------------------------------------------------------------------


def committed(
    number: int, stream: int, start: int, end: int, size_bytes: int = 100
) -> ObjectCommitted:
    ranges = (
        RangeEntry(
            StreamId(stream), Offset(start), Offset(end), end - start, size_bytes, Millis(0)
        ),
    )
    return ObjectCommitted(
        ObjectId(number), data_key(ObjectId(number)), 3, size_bytes, Millis(0), ranges
    )


def in_place(number: int, stream: int, writer: BrokerIncarnation, slot: int) -> ObjectCommitted:
    ranges = (RangeEntry(StreamId(stream), Offset(0), Offset(4), 4, 100, Millis(0)),)
    key = wal_key(writer, WalSequence(slot), IN_STORE)
    return ObjectCommitted(
        ObjectId(number),
        key,
        1,
        100,
        Millis(0),
        ranges,
        writer.node_id,
        writer.node_epoch,
        WalSequence(slot),
    )


STREAMS = (
    TopicRecord(TOPIC_ID, "t"),
    StreamCreated(StreamId(1), TOPIC_ID, 0, "data"),
    StreamCreated(StreamId(2), TOPIC_ID, 1, "data"),
)
WALS = (
    WalRecord(ONE.node_id, ONE.node_epoch, WalSequence(3)),
    WalRecord(DEAD.node_id, DEAD.node_epoch, WalSequence(0)),
)
LOG = (*STREAMS, *WALS, committed(10, 1, 0, 5), committed(11, 1, 5, 9), in_place(12, 2, DEAD, 1))
ENDED = WalEnded(DEAD.node_id, DEAD.node_epoch, WalSequence(4))


def listed(
    image: MetadataImage,
    sizes: Mapping[str, int],
    *,
    older_than_ms: int = 1_000,
    age_ms: int = 5_000,
) -> Inventory:
    """Return an inventory of these keys and their sizes."""
    inventory = Inventory("c", lambda: image, NOW_MS, older_than_ms)
    for part in PARTS:
        for key in sorted(key for key in sizes if key.startswith(part)):
            inventory.add(part, ObjectInfo(key, sizes[key], "e", NOW_MS - age_ms))
        inventory.end_part(part)
    return inventory


def slots(writer: BrokerIncarnation, *numbers: int, size_bytes: int = 100) -> dict[str, int]:
    return {wal_key(writer, WalSequence(number), IN_STORE): size_bytes for number in numbers}


WHOLE = {data_key(ObjectId(10)): 100, data_key(ObjectId(11)): 100, **slots(DEAD, 1)}


def test_referenced_objects_that_exist_are_neither_missing_nor_orphans() -> None:
    image = image_of(
        *LOG, ENDED, ObjectPrepared(ObjectId(13), data_key(ObjectId(13)), 0, MetadataOffset(0))
    )
    inventory = listed(image, {**WHOLE, data_key(ObjectId(13)): 7})
    assert (
        inventory.missing(),
        inventory.damaged(),
        inventory.orphans(),
        inventory.foreign.count,
    ) == ([], [], [], 0)


def test_a_missing_object_is_reported_with_its_offsets_while_it_is_referenced() -> None:
    image = image_of(*LOG, ENDED)
    inventory = listed(image, {data_key(ObjectId(11)): 99})
    missing = inventory.missing()
    assert {item.object_id for item in missing} == {10, 12}
    assert lost_ranges(image, [item.object_id for item in missing]) == [
        LostRange("t", 0, "data", 0, 5, data_key(ObjectId(10))),
        LostRange("t", 1, "data", 0, 4, wal_key(DEAD, WalSequence(1), IN_STORE)),
    ]
    assert [(item.expected.object_id, item.found_bytes) for item in inventory.damaged()] == [
        (11, 99)
    ]
    later = MetadataImage()
    assert Inventory("c", lambda: later, NOW_MS, 0).missing() == []


def test_an_object_that_is_no_longer_referenced_after_the_listing_is_not_missing() -> None:
    image = image_of(*LOG, ENDED)
    inventory = listed(image, {})
    image.streams.remove(StreamId(1))
    for number in (10, 11):
        image.objects.release(ObjectId(number), StreamId(1), Offset(0))
    assert [item.object_id for item in inventory.missing()] == [12]


def test_only_old_objects_unreferenced_before_and_after_the_listing_are_orphans() -> None:
    image = image_of(*LOG, ENDED)
    orphan = data_key(ObjectId(999))
    assert [suspect.key for suspect in listed(image, {**WHOLE, orphan: 5}).orphans()] == [orphan]
    young = listed(image, {**WHOLE, orphan: 5}, age_ms=10)
    assert (young.orphans(), young.young_count) == ([], 1)
    raced = listed(image, {**WHOLE, orphan: 5})
    image.apply_all([ObjectPrepared(ObjectId(999), orphan, 0, MetadataOffset(0))])
    assert raced.orphans() == []


def test_only_wal_slots_below_the_end_are_orphans_and_never_a_fence() -> None:
    image = image_of(*LOG, ENDED)
    found = {
        **WHOLE,
        **slots(DEAD, 0, 4, 5, 6),
        **slots(DEAD, 2, size_bytes=HEADER_BYTES),
        **slots(ONE, 1, 3, 4),
    }
    inventory = listed(image, found)
    assert [suspect.key for suspect in inventory.orphans()] == list(slots(DEAD, 0))
    # 1 is used in place, 4 is the fence
    assert [
        slot for slot in range(7) if is_unknown(image, wal_key(DEAD, WalSequence(slot), IN_STORE))
    ] == [
        0,
        2,
        3,
    ]
    assert (inventory.backlogs[ONE].slots, inventory.backlogs[ONE].size_bytes) == (2, 200)
    assert inventory.backlogs[ONE].newest == (
        wal_key(ONE, WalSequence(4), IN_STORE),
        NOW_MS - 5_000,
    )


def test_slots_of_a_running_or_unknown_wal_are_not_orphans() -> None:
    image = image_of(*LOG)
    inventory = listed(image, {**WHOLE, **slots(DEAD, 0, 1, 2), **slots(TWO, 0)})
    assert inventory.orphans() == []
    assert [suspect.key for suspect in inventory.unknown_wal_slots()] == list(slots(TWO, 0))
    image.apply_all([WalRecord(TWO.node_id, TWO.node_epoch, WalSequence(0))])
    assert inventory.unknown_wal_slots() == []


def test_other_objects_of_the_bucket_are_checked_by_their_own_rules() -> None:
    week_ms = 8 * 24 * 3_600_000
    keys = (
        f"meta/c/log/{0:020d}",
        f"meta/c/snapshots/{5:020d}-{1:020d}",
        "meta/other/log/x",
        f"manifest/c/{'9' * 19}8",
        *(f"leases/c/{UUID(int=1)}-{serial:010d}" for serial in (3, 4)),
        "leases/c/x",
        "probe/1",
        "probe/probe-abc",
        "spark/c/q/start",
        "staged/w/00000000000000000001/x",
        "data/0zz",
    )
    inventory = listed(MetadataImage(), dict.fromkeys(keys, 1), age_ms=week_ms)
    assert inventory.other_clusters == {"other"}
    assert inventory.lease_count == 1
    assert sorted(item.key for item in inventory.foreign.items) == ["data/0zz", "leases/c/x"]
    assert [suspect.key for suspect in inventory.orphans()] == ["probe/probe-abc"]
    assert inventory.staged_old() == ["staged/w/"]


def test_objects_abandoned_long_ago_are_overdue() -> None:
    image = image_of(
        ObjectPrepared(ObjectId(1), data_key(ObjectId(1)), 0, MetadataOffset(0)),
        ObjectDestroyed(ObjectId(1), Millis(NOW_MS - 10_000), MetadataOffset(0)),
    )
    assert (overdue(image, NOW_MS, 9_000), overdue(image, NOW_MS, 10_000)) == (1, 0)


# --- deleting -------------------------------------------------------------------------------------


class Growing:
    """Metadata with one more object at each access."""

    is_live = True

    def __init__(self, *news: Record) -> None:
        self.image = image_of()
        self._news = list(news)

    async def refresh(self) -> None:
        if self._news:
            self.image.apply_all([self._news.pop(0)])

    async def close(self) -> None:
        """Close nothing."""


async def test_objects_referenced_meanwhile_are_not_deleted() -> None:
    store = MemoryStore()
    keys = [data_key(ObjectId(number)) for number in range(DELETE_BATCH_COUNT + 2)]
    for key in keys:
        await store.put(key, b"x")
    kept = ObjectId(0), ObjectId(DELETE_BATCH_COUNT)
    metadata = Growing(
        *(ObjectPrepared(number, data_key(number), 0, MetadataOffset(0)) for number in kept)
    )
    assert (
        await delete_orphans(store, metadata, [Suspect(key, 1, 0) for key in keys], lambda _: None)
        == DELETE_BATCH_COUNT
    )
    assert {info.key async for info in store.list("")} == {data_key(number) for number in kept}


async def test_an_unlisted_object_that_exists_on_request_is_not_missing() -> None:
    store = MemoryStore()
    await store.put("data/a", b"x")
    requested = [Expected("data/a", ObjectId(1), 1), Expected("data/b", ObjectId(2), 1)]
    assert await confirm_missing(store, requested) == requested[1:]


def test_snapshot_topics_are_expected_in_the_manifest_and_reported_by_name() -> None:
    frozen = [
        FrozenTopicRecord(UUID(int=70 + at), "t", name, (), Millis(0), -1, MetadataOffset(0))
        for at, name in enumerate(("nightly", ""))
    ]
    image = image_of(*LOG, ENDED, *frozen)
    expected = {item[0] for item in expected_in_manifest(image)}
    assert UUID(int=70) in expected
    assert UUID(int=71) not in expected, "a deleted topic"
    assert image.topic_name(UUID(int=70)) == "t@nightly"
    assert image.topic_name(UUID(int=72)) == ""
