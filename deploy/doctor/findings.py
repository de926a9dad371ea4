"""What a check of a deployment may find: every finding with its sentence and the way to mend it, in
one table.

Invariants: pure; codes are words that scripts rely on: never give one another meaning. A sentence
says what is wrong and with what; the way to mend it names commands and settings that exist.
`docs/reference/doctor.md` is generated from here, a test compares.
Must not gather or judge: `gather` and `judge` do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

SUBJECTS_SHOWN_MAX: Final = 5
"""Names in one sentence; the rest is counted."""


class Level(Enum):
    """hint: worth knowing, nothing is wrong. unchecked: it could not be looked at. warn and fail
    need somebody to act.
    """

    OK = "ok"
    HINT = "hint"
    UNCHECKED = "unchecked"
    WARN = "warn"
    FAIL = "fail"

    @property
    def needs_action(self) -> bool:
        return self in {Level.WARN, Level.FAIL}


_RANKS: Final = tuple(Level)


def worst(levels: Iterable[Level]) -> Level:
    return max(levels, key=_RANKS.index, default=Level.OK)


Value = str | int | float


class Finding(msgspec.Struct, frozen=True):
    """values: what the sentence was filled with, for programs."""

    code: str
    level: Level
    sentence: str
    mend: str
    values: dict[str, Value]


@dataclass(frozen=True, slots=True)
class Kind:
    """sentence, mend: with {names} of values."""

    code: str
    level: Level
    sentence: str
    mend: str

    def found(self, **values: Value) -> Finding:
        return Finding(
            self.code,
            self.level,
            self.sentence.format(**values),
            self.mend.format(**values),
            values,
        )


class CheckResult(msgspec.Struct, frozen=True):
    """What one check came to. summary: one line for people. failed: it was asked for and could not
    be made.
    """

    name: str
    level: Level
    summary: str
    findings: list[Finding] = msgspec.field(default_factory=list[Finding])
    failed: bool = False


def result(name: str, summary: str, findings: Sequence[Finding] = ()) -> CheckResult:
    return CheckResult(name, worst(finding.level for finding in findings), summary, list(findings))


def unchecked(name: str, why: str, *, failed: bool = False) -> CheckResult:
    return CheckResult(name, Level.UNCHECKED, why, failed=failed)


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    shown = ", ".join(names[:SUBJECTS_SHOWN_MAX])
    return (
        shown
        if len(names) <= SUBJECTS_SHOWN_MAX
        else f"{shown} and {len(names) - SUBJECTS_SHOWN_MAX:,} more"
    )


@dataclass(frozen=True, slots=True)
class Chapter:
    """One check, as the documentation has it."""

    name: str
    about: str
    kinds: tuple[Kind, ...] = field(default=())


# --- the object store -----------------------------------------------------------------------------

STORE_FAILS: Final = Kind(
    "store-fails",
    Level.FAIL,
    "The store {url} cannot be used from here: {error}.",
    "Check the URL of --store, the network and the credentials; nodes and this command need to get,"
    " put, delete and list.",
)
NOT_CONDITIONAL: Final = Kind(
    "store-not-conditional",
    Level.FAIL,
    "The store {url} does not honor conditional writes: {detail}. A dead writer could not be"
    " fenced, and acknowledged records would be lost.",
    "Do not run a cluster on it: use Amazon S3 or a store that checks If-None-Match and If-Match on"
    " PutObject, or upgrade the proxy in front.",
)
STORE_SLOW: Final = Kind(
    "store-slow",
    Level.WARN,
    "A small {operation} takes {median_ms:.0f} ms (median of {count}), more than {limit_ms} ms:"
    " {matters}.",
    "Run in the store's region or beside it; look at the store's own figures for throttling. If"
    " only this machine is far away, nothing is wrong.",
)
WRONG_STORE: Final = Kind(
    "store-of-another-cluster",
    Level.FAIL,
    "The controllers lead cluster {cluster_id}, but the store {url} holds {there}.",
    "Name the store that the brokers and controllers were started with (--store, PENSTOCK_STORE).",
)
SEVERAL_CLUSTERS: Final = Kind(
    "several-clusters",
    Level.FAIL,
    "The store holds metadata of several clusters ({clusters}), whose objects cannot be told from"
    " each other.",
    "Give each cluster a bucket or a prefix of its own: `s3://BUCKET/PREFIX`; nothing is deleted by"
    " this command meanwhile.",
)

# --- clocks ---------------------------------------------------------------------------------------

CLOCK_OFF: Final = Kind(
    "clock-off",
    Level.WARN,
    "The clock of {who} is {off_s:.0f} s {direction} that of {reference}.",
    "Let all machines keep time by the same servers (chrony, systemd-timesyncd); `chronyc tracking`"
    " tells how far one is off.",
)
CLOCK_FAR_OFF: Final = Kind(
    "clock-far-off",
    Level.FAIL,
    "The clock of {who} is {off_s:.0f} s {direction} that of {reference}: timestamps of records and"
    " log lines are wrong by that.",
    "Set that clock right now (chrony, systemd-timesyncd); Amazon S3 refuses requests that are 15"
    " minutes off.",
)

# --- controllers ----------------------------------------------------------------------------------

NO_CONTROLLER: Final = Kind(
    "no-controller",
    Level.FAIL,
    "No controller answers at {address}.",
    "Start the controllers (`penstock controller`). If all of them lost their disks: `penstock"
    " controller recover --from STORE`.",
)
NO_LEADER: Final = Kind(
    "no-quorum-leader",
    Level.FAIL,
    "No controller leads: {answering} of {known} answer ({said}).",
    "Start those that do not answer: a majority of the voters has to run. `penstock controller"
    " status` shows them.",
)
CONTROLLER_AWAY: Final = Kind(
    "controller-unreachable",
    Level.FAIL,
    "Controller {node_id} at {address} does not answer{heard}.",
    "Start it again with its data directory; if its disk is lost, `penstock controller remove"
    " {node_id}` and let a new one join.",
)
CONTROLLER_LAGS: Final = Kind(
    "controller-lags",
    Level.WARN,
    "Controller {node_id} lacks {lag:,} entries of the metadata log{since}.",
    "Look at its disk and network; `penstock controller status` shows lag and FsyncP99Ms of each.",
)
CONTROLLER_DISK: Final = Kind(
    "controller-disk-slow",
    Level.WARN,
    "Controller {node_id} needs {fsync_ms:.0f} ms (99th percentile) to sync its journal: every"
    " change of metadata waits for a majority of these.",
    "Put --metadata-log-dir on a local SSD that nobody else writes to.",
)
EVEN_VOTERS: Final = Kind(
    "even-voters",
    Level.WARN,
    "{count} controllers vote, an even number: one less would survive as many losses.",
    "`penstock controller remove ID`, or start one more with --controller-quorum-join-servers and"
    " `penstock controller add ID`.",
)
SINGLE_VOTER: Final = Kind(
    "single-voter",
    Level.HINT,
    "One controller votes: while it is away, no broker and no leader can change.",
    "For production start two more with --controller-quorum-join-servers and `penstock controller"
    " add ID` each.",
)

# --- nodes ----------------------------------------------------------------------------------------

VERSIONS_DIFFER: Final = Kind(
    "versions-differ",
    Level.WARN,
    "Nodes run different versions: {versions}.",
    "Finish the upgrade: restart the others one after the other with the same version.",
)
NO_BROKER: Final = Kind(
    "no-broker",
    Level.FAIL,
    "No broker is alive: {registered} registered.",
    "Start brokers (`penstock broker`); `penstock nodes` shows them.",
)
BROKER_FENCED: Final = Kind(
    "broker-fenced",
    Level.WARN,
    "Broker {node_id} is fenced: it was declared dead and has not come back.",
    "Start it again with the same node.id; its log says why it ended. If it is gone for good, pass"
    " --accept broker-fenced.",
)
BROKER_EXCLUDED: Final = Kind(
    "broker-excluded",
    Level.WARN,
    "Broker {node_id} is given nothing to lead: it {note}.",
    "Look at its machine and its way to the store; it is taken back when it answers as fast as the"
    " others (`penstock nodes`).",
)
BROKER_AWAY: Final = Kind(
    "broker-unreachable",
    Level.FAIL,
    "Broker {node_id} cannot be reached at {address}, where clients of its listener {listener} are"
    " sent: {problem}.",
    "Set advertised.listeners of that broker to an address that clients reach (or mend name"
    " service, port mapping, firewall); if this listener is not meant for this machine, name those"
    " that are with --listener.",
)
BROKER_IS_ANOTHER: Final = Kind(
    "broker-is-another",
    Level.FAIL,
    "{address} is advertised by broker {node_id} (listener {listener}), but {who} answers there.",
    "Give every broker an advertised.listeners address of its own, as in"
    " PLAINTEXT://broker-{{id}}.example.com:9092.",
)

# --- partitions -----------------------------------------------------------------------------------

LEADERLESS: Final = Kind(
    "partition-without-leader",
    Level.FAIL,
    "{count:,} partitions have no living leader: {partitions}.",
    "Start brokers if none is alive (`penstock nodes`); otherwise the WAL of the last leader waits"
    " for recovery: look at the brokers' logs.",
)
MOVE_HANGS: Final = Kind(
    "move-hangs",
    Level.WARN,
    "{partition} has been moving from broker {source} to broker {target} for {age_s:.0f} s, past"
    " its deadline.",
    "`penstock reassign trace {partition}` shows at which step it is; the logs of broker {source}"
    " tell what it waits for.",
)
CANNOT_OPEN: Final = Kind(
    "partition-cannot-open",
    Level.FAIL,
    "{partition} does not open on broker {node_id}, which leads it: {tries:,} tries in {for_s:.0f}"
    " s; the last one failed with: {error}.",
    "Clients of this partition wait. Mend what the error names; the broker tries again every 2 s."
    " An object that is gone or corrupt: bring it back from the bucket's versions or a copy;"
    ' docs/how-to/alerts.md, "Partitions that cannot open", has the steps.',
)
OBJECT_UNREADABLE: Final = Kind(
    "object-unreadable",
    Level.FAIL,
    "{key} {state}: {reads:,} reads of {brokers} ended there. It holds {ranges}.",
    "Consumers get an error there; all other offsets are served. Bring the object back from the"
    " bucket's versions or a copy, or let consumers go on behind these offsets;"
    ' docs/how-to/alerts.md, "Objects damaged", has the steps.',
)

# --- WALs -----------------------------------------------------------------------------------------

WAL_WAITS: Final = Kind(
    "wal-not-recovered",
    Level.FAIL,
    "The WAL of broker {node_id}, start {node_epoch}, is not recovered although that start is over:"
    " {waiting}{recoverer}.",
    "A living broker recovers it: start one if there is none (`penstock nodes`), else look for"
    " wal_recovery_failed in the log of the one named.",
)
WAL_BACKLOG: Final = Kind(
    "wal-backlog",
    Level.WARN,
    "Broker {node_id} has {slots:,} WAL slots ({size}) that are not committed, the oldest"
    " {age_s:.0f} s old.",
    "Its uploads do not keep up: look at `penstock top` for failed requests and at its log for"
    " upload warnings; more brokers share the load.",
)
WAL_UNKNOWN: Final = Kind(
    "wal-of-nobody",
    Level.WARN,
    "{count:,} objects below wal/ are of broker starts that the metadata do not know, such as"
    " {example}.",
    "Something else writes to this bucket, or the metadata were set back: `penstock controller"
    " recover --from STORE --dry-run` shows what these WALs hold. They are never deleted by this"
    " command.",
)

WAL_SLOT_LOST: Final = Kind(
    "wal-slot-lost",
    Level.FAIL,
    "WAL slot {slot} of a broker that is dead is lost or damaged; {count:,} partitions wait for it:"
    " {partitions}.",
    "Restore the object from the bucket's versions or a copy: recovery goes on within half a"
    " minute. If that is not possible, `penstock wal repair --store STORE` says which records are"
    " lost, and with --accept-loss goes on without them.",
)
WAL_SLOT_AT_RISK: Final = Kind(
    "wal-slot-at-risk",
    Level.FAIL,
    "WAL slot {slot} of broker {node_id} is lost or damaged: until that broker has uploaded its"
    " records, only its memory has them.",
    "Do not stop that broker until `penstock doctor` does not find this any more"
    " (upload.block.max.age.ms), and find out who deletes or writes below wal/.",
)

# --- metadata in the store ------------------------------------------------------------------------

BACKUP_DAMAGED: Final = Kind(
    "backup-damaged",
    Level.FAIL,
    "The backup of the metadata in the store cannot be used: {error}.",
    "Keep the controllers' disks safe until the next snapshot is in the store"
    " (metadata.log.max.records.between.snapshots); restore the object if the bucket keeps"
    " versions.",
)
BACKUP_LAGS: Final = Kind(
    "backup-lags",
    Level.WARN,
    "The backup of the metadata ends {count:,} records before what is committed, and none was"
    " written for {age_s:.0f} s.",
    "Look for backup_failed in the log of the leading controller (`penstock controller status`): it"
    " cannot write to the store.",
)
SNAPSHOT_OVERDUE: Final = Kind(
    "snapshot-overdue",
    Level.WARN,
    "{count:,} objects of the metadata's backup follow the newest snapshot: a recovery would read"
    " them all.",
    "Look for snapshot_failed in the log of the leading controller (`penstock controller status`).",
)
NO_MANIFEST: Final = Kind(
    "no-manifest",
    Level.HINT,
    "The store holds no manifest: Spark and other readers of the bucket see nothing.",
    "If they should, run the controllers with manifest.interval.ms above 0.",
)
MANIFEST_STALE: Final = Kind(
    "manifest-stale",
    Level.WARN,
    "The newest manifest is {age_s:.0f} s old and lacks what the metadata have: readers of the"
    " bucket see an old state.",
    "Look for manifest_not_published in the log of the leading controller (`penstock controller"
    " status`).",
)
LEASES_MANY: Final = Kind(
    "leases-many",
    Level.WARN,
    "{count:,} leases are held, of at most {limit:,}: readers will be refused, and nothing that was"
    " destroyed is deleted.",
    "End the jobs that hold them, or delete the keys below {prefix} of jobs that are gone.",
)

# --- objects --------------------------------------------------------------------------------------

DATA_LOST: Final = Kind(
    "data-lost",
    Level.FAIL,
    "{partition} has lost offsets {ranges}{stream}: {keys} not in the store.",
    "Bring the objects back from the bucket's versions or a copy (`aws s3api list-object-versions"
    " --bucket BUCKET --prefix KEY`), and find out who deletes there: lifecycle rules must leave"
    " data/ and wal/ alone.",
)
OBJECT_DAMAGED: Final = Kind(
    "object-damaged",
    Level.FAIL,
    "{key} has {found_bytes:,} bytes, but the metadata say {expected_bytes:,}: {partitions} may"
    " have lost records.",
    "Bring the object back from the bucket's versions or a copy; nothing but Penstock may write"
    " below data/ and wal/.",
)
ORPHANS: Final = Kind(
    "orphans",
    Level.WARN,
    "{count:,} objects ({size}) older than {older_than} belong to nothing, such as {example}.",
    "`penstock doctor --delete-orphans` deletes them after another look at the metadata; they only"
    " cost storage.",
)
DELETION_BEHIND: Final = Kind(
    "deletion-behind",
    Level.WARN,
    "{count:,} objects were given up more than {age_h:.0f} h ago and are still there, although no"
    " lease holds them.",
    "Look for janitor_round_failed in the log of the leading controller: it cannot delete, or its"
    " backup makes no progress.",
)
STAGED_LEFT: Final = Kind(
    "staged-left",
    Level.HINT,
    "{count:,} staged writes of Spark are older than {age_d} days, such as {example}.",
    "If no job of that name runs any more, delete its prefix; a lifecycle rule on staged/ may"
    " do so.",
)
FOREIGN: Final = Kind(
    "foreign-keys",
    Level.HINT,
    "{count:,} keys below our prefixes are not ours, such as {example}; they are left alone.",
    "Keep other things in another bucket or prefix.",
)

# --- the table ------------------------------------------------------------------------------------

STORE: Final = "store"
CLOCKS: Final = "clocks"
CONTROLLERS: Final = "controllers"
VERSIONS: Final = "versions"
BROKERS: Final = "brokers"
LISTENERS: Final = "listeners"
PARTITIONS: Final = "partitions"
WALS: Final = "WALs"
BACKUP: Final = "backup"
MANIFEST: Final = "manifest"
OBJECTS: Final = "objects"

CHAPTERS: Final = (
    Chapter(
        STORE,
        "Reachable, conditional (a probe object is written twice and deleted), how long PUT, GET"
        " and LIST take, whose it is.",
        (STORE_FAILS, NOT_CONDITIONAL, STORE_SLOW, WRONG_STORE, SEVERAL_CLUSTERS),
    ),
    Chapter(
        CLOCKS,
        "The store's clock and the controllers' against this machine's; brokers' clocks, as their"
        " newest WAL slots show them, against the store's.",
        (CLOCK_OFF, CLOCK_FAR_OFF),
    ),
    Chapter(
        CONTROLLERS,
        "Each controller is asked; the leader says how far the others are.",
        (
            NO_CONTROLLER,
            NO_LEADER,
            CONTROLLER_AWAY,
            CONTROLLER_LAGS,
            CONTROLLER_DISK,
            EVEN_VOTERS,
            SINGLE_VOTER,
        ),
    ),
    Chapter(
        VERSIONS,
        "Brokers tell theirs when they register, controllers when they are asked.",
        (VERSIONS_DIFFER,),
    ),
    Chapter(
        BROKERS, "Who is registered, and who lives.", (NO_BROKER, BROKER_FENCED, BROKER_EXCLUDED)
    ),
    Chapter(
        LISTENERS,
        "Every living broker is asked at each of its advertised addresses who it is: by its node.id"
        " and its cluster's id.",
        (BROKER_AWAY, BROKER_IS_ANOTHER),
    ),
    Chapter(
        PARTITIONS,
        "What nobody leads, and moves past their deadline; only what lasts from the first look to"
        " the second, `--settle` seconds later. Partitions that their leaders have not been able to"
        " open for 5 s, and objects that brokers could not read within the last hour, as brokers"
        " report them to the controllers every few seconds (`load.report.interval.ms`).",
        (LEADERLESS, MOVE_HANGS, CANNOT_OPEN, OBJECT_UNREADABLE),
    ),
    Chapter(
        WALS,
        "What lies in WALs and is not committed, WALs that nobody recovers, and slots of both that"
        " the store has lost or damaged: each slot says which slots before it were there.",
        (WAL_WAITS, WAL_SLOT_LOST, WAL_SLOT_AT_RISK, WAL_BACKLOG, WAL_UNKNOWN),
    ),
    Chapter(
        BACKUP,
        "What a recovery after the loss of all controllers would find.",
        (BACKUP_DAMAGED, BACKUP_LAGS, SNAPSHOT_OVERDUE),
    ),
    Chapter(
        MANIFEST, "What readers of the bucket see.", (NO_MANIFEST, MANIFEST_STALE, LEASES_MANY)
    ),
    Chapter(
        OBJECTS,
        "The bucket is listed against the metadata. Missing is what they refer to, before and after"
        " the listing, and what is not there when it is asked for by name. An orphan is what they"
        " do not know before and after, and is older than `--older-than`.",
        (DATA_LOST, OBJECT_DAMAGED, ORPHANS, DELETION_BEHIND, STAGED_LEFT, FOREIGN),
    ),
)

KINDS: Final = {kind.code: kind for chapter in CHAPTERS for kind in chapter.kinds}
