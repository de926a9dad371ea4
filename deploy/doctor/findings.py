"""List every finding of `penstock doctor`, with its sentence and its remedy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

SUBJECTS_SHOWN_MAX: Final = 5
"""Maximum number of names in one sentence; additional names are only counted."""


class Level(Enum):
    """Severity of a finding. hint: no problem. unchecked: the check could not be performed. warn
    and fail need action.
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


class _Number(int):
    """A number in a template. {count:one|several} is the first text for 1, otherwise the second."""

    def __format__(self, spec: str) -> str:
        one, is_choice, several = spec.partition("|")
        if not is_choice:
            return super().__format__(spec)
        return one if self == 1 else several


class Finding(msgspec.Struct, frozen=True):
    """A problem that was found. values: the values in the sentence, for programs."""

    code: str
    level: Level
    sentence: str
    mend: str
    values: dict[str, Value]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding. sentence, mend (the remedy): templates with {names} of values.

    Invariants: pure. Scripts rely on the codes: never change the meaning of a code. A sentence
    describes the problem; a remedy refers to existing commands and settings. A test compares
    `docs/reference/doctor.md`, which is generated from this module. Facts are gathered in
    `examination` and evaluated in `checks`.
    """

    code: str
    level: Level
    sentence: str
    mend: str

    def found(self, **values: Value) -> Finding:
        shown = {
            name: _Number(value) if isinstance(value, int) else value
            for name, value in values.items()
        }
        return Finding(
            self.code,
            self.level,
            self.sentence.format(**shown),
            self.mend.format(**shown),
            values,
        )


class CheckResult(msgspec.Struct, frozen=True):
    """Result of one check. summary: one line. failed: the check was requested but could not be
    performed.
    """

    name: str
    level: Level
    summary: str
    findings: list[Finding] = msgspec.field(default_factory=list[Finding])
    failed: bool = False


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join(names[:SUBJECTS_SHOWN_MAX])
    return (
        shown
        if len(names) <= SUBJECTS_SHOWN_MAX
        else f"{shown} and {len(names) - SUBJECTS_SHOWN_MAX:,} more"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One check. about: for the reference page. kinds: what it may find."""

    name: str
    about: str
    kinds: list[Kind] = field(default_factory=list[Kind])

    def hint(self, code: str, sentence: str, mend: str) -> Kind:
        return self._kind(Kind(code, Level.HINT, sentence, mend))

    def warn(self, code: str, sentence: str, mend: str) -> Kind:
        return self._kind(Kind(code, Level.WARN, sentence, mend))

    def fail(self, code: str, sentence: str, mend: str) -> Kind:
        return self._kind(Kind(code, Level.FAIL, sentence, mend))

    def _kind(self, kind: Kind) -> Kind:
        self.kinds.append(kind)
        return kind

    def result(self, summary: str, findings: Sequence[Finding] = ()) -> CheckResult:
        level = worst(finding.level for finding in findings)
        return CheckResult(self.name, level, summary, list(findings))

    def unchecked(self, why: str, *, failed: bool = False) -> CheckResult:
        return CheckResult(self.name, Level.UNCHECKED, why, failed=failed)


CHECKS: Final[list[Check]] = []
"""All checks, in the order of reports and of the reference page."""


def _check(name: str, about: str) -> Check:
    check = Check(name, about)
    CHECKS.append(check)
    return check


STORE: Final = _check(
    "store",
    "Checks that the store is reachable, that it honors conditional writes (by writing"
    " a probe object twice), how long PUT, GET and LIST take, and which cluster it"
    " belongs to.",
)
STORE_FAILS: Final = STORE.fail(
    "store-fails",
    "The store {url} cannot be used from this machine: {error}.",
    "Check the URL of --store, the network and the credentials. Nodes and this command need"
    " to get, put, delete and list objects.",
)
NOT_CONDITIONAL: Final = STORE.fail(
    "store-not-conditional",
    "The store {url} does not honor conditional writes: {detail}. A dead writer could not"
    " be fenced, and acknowledged records could be lost.",
    "Do not run a cluster on it. Use Amazon S3 or a store that checks If-None-Match and"
    " If-Match on PutObject, or upgrade the proxy in front of the store.",
)
STORE_SLOW: Final = STORE.warn(
    "store-slow",
    "A small {operation} takes {median_ms:.0f} ms (median of {count}), more than {limit_ms} ms:"
    " {matters}.",
    "Run in the store's region or near it, and check the store's metrics for throttling. If"
    " only this machine is far away, nothing is wrong.",
)
WRONG_STORE: Final = STORE.fail(
    "store-of-another-cluster",
    "The controllers run cluster {cluster_id}, but the store {url} holds {there}.",
    "Pass the store that the brokers and controllers were started with (--store, PENSTOCK_STORE).",
)
SEVERAL_CLUSTERS: Final = STORE.fail(
    "several-clusters",
    "The store holds metadata of several clusters ({clusters}); their objects cannot be"
    " distinguished.",
    "Give each cluster its own bucket or prefix: `s3://BUCKET/PREFIX`. Until then, this command"
    " deletes nothing.",
)

CLOCKS: Final = _check(
    "clocks",
    "Compares the clocks of the store and the controllers with this machine's, and the"
    " brokers' clocks, as their newest WAL slots show them, with the store's.",
)
CLOCK_OFF: Final = CLOCKS.warn(
    "clock-off",
    "The clock of {who} is {off_s:.0f} s {direction} that of {reference}.",
    "Synchronize all machines with the same time servers (chrony, systemd-timesyncd);"
    " `chronyc tracking` shows the offset of a machine.",
)
CLOCK_FAR_OFF: Final = CLOCKS.fail(
    "clock-far-off",
    "The clock of {who} is {off_s:.0f} s {direction} that of {reference}. Timestamps of"
    " records and log lines are wrong by as much.",
    "Correct that clock now (chrony, systemd-timesyncd). Amazon S3 rejects requests whose time is"
    " off by 15 minutes.",
)

CONTROLLERS: Final = _check(
    "controllers",
    "Requests the state of each controller, and from the leader the progress of the others.",
)
NO_CONTROLLER: Final = CONTROLLERS.fail(
    "no-controller",
    "No controller responds at {address}: {reason}.",
    "Use the address of a controller, and start the controllers (`penstock controller`). If all of"
    " them lost their disks, run `penstock controller recover --from STORE`.",
)
NO_LEADER: Final = CONTROLLERS.fail(
    "no-quorum-leader",
    "The controllers have no leader: {responding} of {known} respond ({roles}).",
    "Start those that do not respond: a majority of the voters must be running. `penstock"
    " quorum describe` shows them.",
)
CONTROLLER_AWAY: Final = CONTROLLERS.fail(
    "controller-unreachable",
    "Controller {node_id} at {address} does not respond{last_fetch}.",
    "Start it again with its data directory. If its disk is lost, run `penstock quorum"
    " remove {node_id}` and let a new controller join.",
)
CONTROLLER_LAGS: Final = CONTROLLERS.warn(
    "controller-lags",
    "Controller {node_id} lacks {lag:,} {lag:entry|entries} of the metadata log{since}.",
    "Check its disk and network; `penstock quorum describe` shows the lag and FsyncP99Ms"
    " of each controller.",
)
CONTROLLER_DISK: Final = CONTROLLERS.warn(
    "controller-disk-slow",
    "Controller {node_id} takes {fsync_ms:.0f} ms (99th percentile) to sync its journal."
    " Every metadata change waits for the syncs of a majority.",
    "Put --metadata-log-dir on a local SSD that nothing else writes to.",
)
EVEN_VOTERS: Final = CONTROLLERS.warn(
    "even-voters",
    "{count} controllers vote, an even number: one fewer would tolerate as many failures.",
    "Run `penstock quorum remove ID`, or start one more with"
    " --controller-quorum-join-servers and run `penstock quorum add ID`.",
)
SINGLE_VOTER: Final = CONTROLLERS.hint(
    "single-voter",
    "Only one controller votes: while it is down, no metadata can change.",
    "For production, start two more with --controller-quorum-join-servers and run `penstock"
    " quorum add ID` for each.",
)

VERSIONS: Final = _check(
    "versions",
    "Compares the versions of all nodes: brokers register theirs, controllers report theirs.",
)
VERSIONS_DIFFER: Final = VERSIONS.warn(
    "versions-differ",
    "Nodes run different versions: {versions}.",
    "Finish the upgrade: restart the other nodes one at a time with the same version.",
)

BROKERS: Final = _check("brokers", "Lists the registered brokers and which of them are alive.")
NO_BROKER: Final = BROKERS.fail(
    "no-broker",
    "No broker is alive; {registered} {registered:is|are} registered.",
    "Start brokers (`penstock broker`). `penstock nodes` lists them.",
)
BROKER_FENCED: Final = BROKERS.warn(
    "broker-fenced",
    "Broker {node_id} is fenced: it was declared dead and has not returned.",
    "Start it again with the same node.id; its log contains the reason why it exited. If it will"
    " not return, remove it with `penstock nodes unregister`.",
)
BROKER_EXCLUDED: Final = BROKERS.warn(
    "broker-excluded",
    "Broker {node_id} gets no partitions to lead: it {note}.",
    "Check its machine and its connection to the store. It gets partitions again when it is as"
    " fast as the others (`penstock nodes`).",
)

LISTENERS: Final = _check(
    "listeners",
    "Asks every live broker at each of its advertised addresses for its node.id and cluster id.",
)
BROKER_AWAY: Final = LISTENERS.fail(
    "broker-unreachable",
    "Broker {node_id} cannot be reached at {address}, where clients of its listener {listener} are"
    " sent: {problem}.",
    "Set advertised.listeners of that broker to an address that clients can reach, or fix"
    " DNS, port mapping or firewall. If this listener is not meant for this machine, select the"
    " others with --listener.",
)
BROKER_IS_ANOTHER: Final = LISTENERS.fail(
    "broker-is-another",
    "{address} is advertised by broker {node_id} (listener {listener}), but {who} responds there.",
    "Give every broker its own address in advertised.listeners, as in"
    " PLAINTEXT://broker-{{id}}.example.com:9092.",
)

PARTITIONS: Final = _check(
    "partitions",
    "Finds partitions without a leader and moves past their deadline. Both count only"
    " if two looks, `--settle` seconds apart, see them. Finds partitions that their"
    " leaders could not open for 5 s, and objects that brokers could not read within"
    " the last hour; brokers report both to the controllers every few seconds"
    " (`load.report.interval.ms`).",
)
LEADERLESS: Final = PARTITIONS.fail(
    "partition-without-leader",
    "{count:,} {count:partition has|partitions have} no live leader: {partitions}.",
    "Start brokers if none is alive (`penstock nodes`). Otherwise the WAL of the last"
    " leader waits for recovery: check the brokers' logs.",
)
MOVE_HANGS: Final = PARTITIONS.warn(
    "move-hangs",
    "{partition} has been moving from broker {source} to broker {target} for {age_s:.0f} s, past"
    " its deadline.",
    "`penstock reassign trace {partition}` shows its current step. The log of broker"
    " {source} shows what it is waiting for.",
)
CANNOT_OPEN: Final = PARTITIONS.fail(
    "partition-cannot-open",
    "{partition} does not open on broker {node_id}, which leads it: {tries:,}"
    " {tries:attempt|attempts} in {for_s:.0f} s; the last one failed with: {error}.",
    "Clients of this partition wait. Fix the cause of the error; the broker retries every 2 s. If"
    " an object is missing or corrupt, restore it from the bucket's versions or a"
    ' copy: see docs/how-to/alerts.md, "Partitions that cannot open".',
)
OBJECT_UNREADABLE: Final = PARTITIONS.fail(
    "object-unreadable",
    "{key} {state}: {reads:,} {reads:read|reads} of {brokers} failed. It holds {ranges}.",
    "Consumers get an error at these offsets; all other offsets are served. Restore the"
    " object from the bucket's versions or a copy, or let consumers skip these offsets: see"
    ' docs/how-to/alerts.md, "Objects damaged".',
)
LEADERS_AWAY: Final = PARTITIONS.hint(
    "preferred-leaders-away",
    "Partitions that prefer broker {node_id}, but have another leader: {count:,}.",
    "Run `penstock elect --preferred`, or let the cluster balance itself with"
    " auto.balance.enable=true on the controllers.",
)

CLIENTS: Final = _check(
    "clients",
    "Lists producers whose settings limited their throughput within the last 10 minutes:"
    " requests much smaller than 256 KiB while 5 of them are in flight, or batches of few"
    " records at a high rate. Brokers report them to the controllers every few seconds.",
)
CLIENT_UNTUNED: Final = CLIENTS.hint(
    "client-untuned",
    "Producer {client_id} at {host} would send more with {settings}: {reason}.",
    "Set {settings} in the configuration of this producer: see docs/how-to/connect-clients.md.",
)

WALS: Final = _check(
    "WALs",
    "Finds uncommitted WAL slots, WALs that no broker recovers, and slots that the"
    " store has lost or damaged: each slot records the slots before it.",
)
WAL_WAITS: Final = WALS.fail(
    "wal-not-recovered",
    "The WAL of broker {node_id}, epoch {node_epoch}, is not recovered although that"
    " process has ended: {waiting}{recoverer}.",
    "A running broker recovers it. Start one if there is none (`penstock nodes`); otherwise"
    " look for wal_recovery_failed in the log of the assigned broker.",
)
WAL_SLOT_LOST: Final = WALS.fail(
    "wal-slot-lost",
    "WAL slot {slot} of a dead broker is lost or damaged; {count:,}"
    " {count:partition waits|partitions wait} for it: {partitions}.",
    "Restore the object from the bucket's versions or a copy: recovery continues within 30 s."
    " If that is not possible, `penstock wal repair --store STORE` lists the lost records;"
    " with --accept-loss, recovery continues without them.",
)
WAL_SLOT_AT_RISK: Final = WALS.fail(
    "wal-slot-at-risk",
    "WAL slot {slot} of broker {node_id} is lost or damaged. Until that broker has uploaded its"
    " records, they are only in its memory.",
    "Do not stop that broker until `penstock doctor` no longer reports this slot"
    " (upload.block.max.age.ms). Find out what deletes or writes objects below wal/.",
)
WAL_BACKLOG: Final = WALS.warn(
    "wal-backlog",
    "Broker {node_id} has {slots:,} uncommitted WAL {slots:slot|slots} ({size}); the"
    " oldest is {age_s:.0f} s old.",
    "Its uploads do not keep up. Check `penstock top` for failed requests and its log for"
    " upload warnings; more brokers share the load.",
)
WAL_OUTSIDE: Final = WALS.warn(
    "wal-outside-wal-store",
    "The WAL of broker {node_id} is in the store, although the cluster has a WAL store.",
    "The broker could not use the WAL store, or found another one in its place: its log has"
    " wal_store_left, wal_store_unavailable or wal_store_wrong with the reason. It returns"
    " when the store has worked for a while, 30 s to 30 min.",
)
WAL_STORE_AHEAD: Final = WALS.warn(
    "store-behind-wal-store",
    "{size} of committed records have been only in the WAL store for up to {age_s:,.0f} s.",
    "They would be lost with the WAL store. Brokers rewrite such ranges into the store within"
    " seconds (`compaction.wal.store.interval.ms`): look for compaction_round_failed in their"
    " logs.",
)
WAL_UNKNOWN: Final = WALS.warn(
    "wal-of-unknown-broker",
    "{count:,} {count:object below wal/ belongs to a broker epoch that is|objects below wal/ belong"
    " to broker epochs that are} not in the metadata, such as {example}.",
    "Something else writes to this bucket, or the metadata was rolled back."
    " `penstock"
    " controller recover --from STORE --dry-run` shows the contents of these WALs. This command"
    " never deletes them.",
)

BACKUP: Final = _check("backup", "Checks what a recovery would find if all controllers were lost.")
BACKUP_DAMAGED: Final = BACKUP.fail(
    "backup-damaged",
    "The metadata backup in the store cannot be used: {error}.",
    "Keep the controllers' disks safe until the next snapshot is in the store"
    " (metadata.log.max.records.between.snapshots). Restore the object if the bucket has"
    " versioning.",
)
BACKUP_LAGS: Final = BACKUP.warn(
    "backup-lags",
    "The metadata backup ends {count:,} {count:record|records} before the committed offset, and"
    " nothing was written to it for {age_s:.0f} s.",
    "Look for backup_failed in the log of the leading controller (`penstock quorum"
    " describe`): it cannot write to the store.",
)
SNAPSHOT_OVERDUE: Final = BACKUP.warn(
    "snapshot-overdue",
    "{count:,} objects of the metadata backup follow the newest snapshot; a recovery would"
    " read them all.",
    "Look for snapshot_failed in the log of the leading controller (`penstock quorum describe`).",
)

MANIFEST: Final = _check("manifest", "Checks what readers of the bucket see.")
NO_MANIFEST: Final = MANIFEST.hint(
    "no-manifest",
    "The store contains no manifest: Spark and other readers of the bucket find no data.",
    "For these readers, run the controllers with manifest.interval.ms above 0.",
)
MANIFEST_STALE: Final = MANIFEST.warn(
    "manifest-stale",
    "The newest manifest is {age_s:.0f} s old and lacks later metadata: readers of the"
    " bucket see an old state.",
    "Look for manifest_publish_failed in the log of the leading controller (`penstock quorum"
    " describe`).",
)
LEASES_MANY: Final = MANIFEST.warn(
    "leases-many",
    "{count:,} of at most {limit:,} leases are held. At the limit, readers are rejected and no"
    " destroyed object is deleted.",
    "End the jobs that hold leases, or delete the keys below {prefix} of jobs that have ended.",
)

TABLES: Final = _check(
    "tables",
    "Reads the statuses that table runners write to the store, for topics with"
    " `penstock.table.enable`.",
)
TABLE_FAILING: Final = TABLES.warn(
    "table-failing",
    "The export of topic {topic} to table {table} fails: {error}",
    "Correct the configs penstock.table.* of the topic, or what the error reports. The runner tries"
    " again within five minutes, and after a change of the configs at once.",
)
TABLE_BEHIND: Final = TABLES.warn(
    "table-behind",
    "Table {table} of topic {topic} lacks records of the last {lag_s:.0f} s, more than two commit"
    " intervals and a minute.",
    "Raise --workers of `penstock table run` and its CPU, or start it with --engine spark.",
)
TABLES_NOT_EXPORTED: Final = TABLES.warn(
    "tables-not-exported",
    "No table runner exports {topics}, although penstock.table.enable is true.",
    "Run `penstock table run`, or set penstock.table.enable=false. If it runs, look for"
    " table_status_not_written in its log.",
)

OBJECTS: Final = _check(
    "objects",
    "Compares the listed bucket with the metadata. An object is missing if the metadata"
    " refer to it before and after the listing and a request by name does not find it."
    " An object is an orphan if the metadata do not contain it before and after the"
    " listing, and it is older than `--older-than`.",
)
DATA_LOST: Final = OBJECTS.fail(
    "data-lost",
    "{partition} has lost offsets {ranges}{stream}: {keys} not in the store.",
    "Restore the objects from the bucket's versions or a copy (`aws s3api"
    " list-object-versions --bucket BUCKET --prefix KEY`), and find out what deletes them:"
    " lifecycle rules must not cover data/ and wal/.",
)
OBJECT_DAMAGED: Final = OBJECTS.fail(
    "object-damaged",
    "{key} has {found_bytes:,} bytes instead of {expected_bytes:,}: {partitions} may have"
    " lost records.",
    "Restore the object from the bucket's versions or a copy. Only Penstock may write below"
    " data/ and wal/.",
)
ORPHANS: Final = OBJECTS.warn(
    "orphans",
    "{count:,} {count:object|objects} ({size}) older than {older_than}"
    " {count:is an orphan|are orphans}, to which nothing refers, such as {example}.",
    "`penstock doctor --delete-orphans` reads the metadata again and deletes them. They"
    " only cost storage.",
)
DELETION_BEHIND: Final = OBJECTS.warn(
    "deletion-behind",
    "{count:,} {count:object was|objects were} destroyed more than {age_h:.0f} h ago and"
    " {count:is|are} still in the store, although no lease holds {count:it|them}.",
    "Look for janitor_round_failed in the log of the leading controller: it cannot delete"
    " objects, or its backup does not advance.",
)
STAGED_LEFT: Final = OBJECTS.hint(
    "staged-left",
    "{count:,} staged {count:write of Spark is|writes of Spark are} older than {age_d} days,"
    " such as {example}.",
    "If no job of that name is running, delete its prefix. A lifecycle rule on staged/ may do so.",
)
FOREIGN: Final = OBJECTS.hint(
    "foreign-keys",
    "{count:,} {count:key|keys} below Penstock's prefixes {count:is|are} not from Penstock, such as"
    " {example}; {count:it is|they are} never deleted.",
    "Keep other objects in another bucket or prefix.",
)

RECORDS: Final = _check(
    "records",
    "With `--records N`, reads the newest N offsets of each partition from the store, and"
    " finds batches that were stored although consumers cannot read all of their records:"
    " by producers of topics without `record.validation=full`, or by mirrors. Needs the"
    " `reader` extra.",
)
"""This check is performed only on request."""
RECORDS_UNREADABLE: Final = RECORDS.fail(
    "records-unreadable",
    "{partition} has {count:,} {count:offset whose record|offsets whose records} cannot be read:"
    " {reasons}.",
    "Readers stop there: `--on-error skip` of `penstock consume`, `sql` and `table sync`, and"
    ' `on_error="skip"` in Python and Spark, skip such records; table syncs can also write'
    " them to dead letters. With `record.validation=full`, brokers reject such batches from"
    " producers. For other consumers, remove the records up to there: `penstock topics"
    " delete-records {topic} --before-offset N`.",
)

KINDS: Final = {kind.code: kind for check in CHECKS for kind in check.kinds}
