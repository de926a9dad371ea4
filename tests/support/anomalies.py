"""Check a history for the anomalies of Jepsen's Kafka workload (`jepsen.tests.kafka`). Pure.

A history lists operations in the order in which they ended. A `Write` is ok, fail or info
(unknown), and values are unique in their partition. Dependency cycles (G0, G1c) are not checked,
because the Kafka protocol does not isolate writes.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, TypeAlias

Part: TypeAlias = tuple[str, int]
"""Topic name and partition."""

UNKNOWN: Final = -1
"""An unknown offset."""

ANOMALIES: Final[Mapping[str, str]] = {
    "inconsistent-offsets": "one offset holds two values",
    "duplicate": "one value lies at two offsets",
    "G1a": (
        "aborted read: a consumer of committed records polls a value whose transaction was aborted"
    ),
    "precommitted-read": (
        "a consumer of committed records polls a value before its producer requests the commit"
    ),
    "lost-write": "a committed value lies below the end of what was polled, and no poll has it",
    "unseen": (
        "a committed value that no poll has, and that may lie after the end of the polled range"
    ),
    "torn-transaction": (
        "polls have some values of a transaction, and not others that lie below the end of what was"
        " polled"
    ),
    "poll-skip": "two polls of one consumer, without a new assignment between them, skip a value",
    "nonmonotonic-poll": (
        "two polls of one consumer, without a new assignment between them, go back or repeat an"
        " offset"
    ),
    "int-poll-skip": "one poll skips a value",
    "int-nonmonotonic-poll": "one poll goes back or repeats an offset",
    "nonmonotonic-send": "two writes of one producer lie in the reverse order",
    "int-nonmonotonic-send": "the values of one write lie in the reverse order",
    "stale-read": (
        "a leader returns an end offset below what was acknowledged more than a lease before it was"
        " asked"
    ),
    "lost-commit": (
        "a group's committed offset is below one that was acknowledged before the request"
    ),
    "consumed-twice": "two committed transactions consumed one record",
    "consume-skip": "the group's offset is after a record that no committed transaction consumed",
}


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Record:
    """A value in a partition. offset: UNKNOWN if the producer did not receive it."""

    part: Part
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Consumed:
    """The input of a transaction, without gaps: the offsets from first to below end."""

    part: Part
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Write:
    """A transaction, or independent records outside of any transaction (is_transaction=False).

    commit_began_s: when the producer requested the commit; inf if it never did. ordered: False for
    a producer without idempotence, whose retries may duplicate and reorder. consumed: the offsets
    that the transaction commits for `group`, as input.
    """

    process: str
    outcome: Outcome
    began_s: float
    ended_s: float
    sends: tuple[Record, ...] = ()
    commit_began_s: float = inf
    is_transaction: bool = True
    ordered: bool = True
    group: str = ""
    consumed: tuple[Consumed, ...] = ()


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll. committed: the consumer uses the isolation level read_committed."""

    process: str
    began_s: float
    ended_s: float
    records: tuple[Record, ...]
    committed: bool = True


@dataclass(frozen=True, slots=True)
class Assign:
    """New positions of a consumer, by assign, seek or a rebalance. They replace earlier ones.

    UNKNOWN: the committed offset of the group.
    """

    process: str
    positions: tuple[tuple[Part, int], ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """A leader acknowledged this offset, and thereby all lower ones."""

    part: Part
    offset: int
    ended_s: float


@dataclass(frozen=True, slots=True)
class Latest:
    """A broker reported that the log ends at `end`: by ListOffsets, or by the high watermark of
    Fetch.
    """

    process: str
    part: Part
    began_s: float
    ended_s: float
    end: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A plain OffsetCommit of a group.

    member: of a group, which sends one commit at a time. After a later commit was acknowledged, an
    earlier one without a response no longer moves the offset back, even if it arrives late. Without
    a member, it may do so at any time.
    """

    group: str
    part: Part
    offset: int
    outcome: Outcome
    began_s: float
    ended_s: float
    member: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a group, as returned by a coordinator or as the position at which a
    member started to read.

    offset: UNKNOWN if there is none.
    """

    group: str
    part: Part
    offset: int
    began_s: float
    ended_s: float


Operation: TypeAlias = Write | Poll | Assign | Ack | Latest | Commit | Committed


@dataclass(frozen=True, slots=True)
class Anomaly:
    """name: one of `ANOMALIES`. text: the values, offsets and processes that prove it."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def find_anomalies(
    history: Sequence[Operation], lease_s: float, ends: Mapping[Part, int] | None = None
) -> list[Anomaly]:
    """Return all anomalies, grouped by name.

    lease_s: how long a disconnected leader may still respond. ends: partitions that were polled
    with read_committed up to this end; below it every committed value must have been polled.
    """
    log = _Log(history, ends or {})
    return [
        *_inconsistent_offsets(log),
        *_duplicates(log),
        *_aborted_reads(log),
        *_precommitted_reads(log),
        *_lost_writes(log),
        *_torn_transactions(log),
        *_polls(log),
        *_sends(log),
        *_stale_reads(history, lease_s),
        *_lost_commits(history),
        *_exactly_once(log),
    ]


class _Log:
    """Facts about the partitions that follow from the operations.

    seen: values that read_committed consumers polled. ends: every committed value below them was
    polled.
    """

    def __init__(self, history: Sequence[Operation], ends: Mapping[Part, int]) -> None:
        self.history = history
        self.writes = [operation for operation in history if isinstance(operation, Write)]
        self.polls = [operation for operation in history if isinstance(operation, Poll)]
        self.final_ends = ends
        self.ends: dict[Part, int] = dict(ends)
        self.at: dict[Part, dict[int, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        self.seen: dict[Part, dict[bytes, int]] = defaultdict(dict)
        self.writer: dict[tuple[Part, bytes], Write] = {}
        for write in self.writes:
            for record in write.sends:
                self.writer[record.part, record.value] = write
                if record.offset != UNKNOWN:
                    self.at[record.part][record.offset].add(record.value)
        for poll in self.polls:
            for record in poll.records:
                self.at[record.part][record.offset].add(record.value)
                if poll.committed:
                    self.seen[record.part][record.value] = record.offset
                    self.ends[record.part] = max(self.ends.get(record.part, 0), record.offset + 1)
        self._offsets = {
            True: {part: sorted(values.values()) for part, values in self.seen.items()},
            False: {part: sorted(values) for part, values in self.at.items()},
        }

    def between(self, part: Part, first: int, end: int, *, committed: bool) -> list[int]:
        """Return the offsets in [first, end) at which such a consumer must find a value."""
        offsets = self._offsets[committed].get(part, [])
        return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]

    def is_seen(self, record: Record) -> bool:
        return record.value in self.seen[record.part]

    def is_passed(self, record: Record) -> bool:
        """Return whether every committed value around the position of this value was polled."""
        if record.offset == UNKNOWN:
            return record.part in self.final_ends
        return record.offset < self.ends.get(record.part, 0)


def _inconsistent_offsets(log: _Log) -> Iterator[Anomaly]:
    for part, offsets in log.at.items():
        for offset, values in sorted(offsets.items()):
            if len(values) > 1:
                yield Anomaly(
                    "inconsistent-offsets",
                    f"{_at(part, offset)} holds {', '.join(map(repr, sorted(values)))}",
                )


def _duplicates(log: _Log) -> Iterator[Anomaly]:
    for part, offsets in log.at.items():
        where: dict[bytes, list[int]] = defaultdict(list)
        for offset, values in sorted(offsets.items()):
            for value in values:
                where[value].append(offset)
        for value, found in where.items():
            writer = log.writer.get((part, value))
            if len(found) > 1 and (writer is None or writer.ordered):
                yield Anomaly(
                    "duplicate",
                    f"{value!r} lies at offsets {', '.join(map(str, found))} of {_name(part)}",
                )


def _aborted_reads(log: _Log) -> Iterator[Anomaly]:
    for poll, record, writer in _committed_reads(log):
        if writer.outcome is Outcome.FAIL:
            yield Anomaly(
                "G1a",
                f"{poll.process} polled {_where(record)} at {poll.ended_s:.3f} s,"
                f" {_transaction(writer)}",
            )


def _precommitted_reads(log: _Log) -> Iterator[Anomaly]:
    for poll, record, writer in _committed_reads(log):
        if (
            writer.is_transaction
            and writer.outcome is not Outcome.FAIL
            and poll.ended_s < writer.commit_began_s
        ):
            yield Anomaly(
                "precommitted-read",
                f"{poll.process} polled {_where(record)} at {poll.ended_s:.3f} s,"
                f" {_transaction(writer)}",
            )


def _committed_reads(log: _Log) -> Iterator[tuple[Poll, Record, Write]]:
    for poll in log.polls:
        if poll.committed:
            for record in poll.records:
                writer = log.writer.get((record.part, record.value))
                if writer is not None:
                    yield poll, record, writer


def _lost_writes(log: _Log) -> Iterator[Anomaly]:
    for write in log.writes:
        if write.outcome is Outcome.OK:
            for record in write.sends:
                if not log.is_seen(record):
                    is_lost = record.offset != UNKNOWN and log.is_passed(record)
                    end = log.ends.get(record.part, 0)
                    text = (
                        f"{_where(record)} was never polled, others were up to offset {end};"
                        f" {_transaction(write)}"
                    )
                    yield Anomaly("lost-write" if is_lost else "unseen", text)


def _torn_transactions(log: _Log) -> Iterator[Anomaly]:
    for write in log.writes:
        if write.is_transaction:
            seen = [record for record in write.sends if log.is_seen(record)]
            missing = [
                record
                for record in write.sends
                if not log.is_seen(record) and log.is_passed(record)
            ]
            if seen and missing:
                text = f"{_where(seen[0])} was polled, {_where(missing[0])} was not"
                yield Anomaly(
                    "torn-transaction",
                    f"{text} ({len(seen)} and {len(missing)} values); {_transaction(write)}",
                )


def _polls(log: _Log) -> Iterator[Anomaly]:
    """Find poll-skip and nonmonotonic-poll, within a poll (int-) and between the polls of a
    consumer.
    """
    next_offsets: dict[str, dict[Part, int]] = defaultdict(dict)
    for operation in log.history:
        if isinstance(operation, Assign):
            next_offsets[operation.process] = {
                part: offset for part, offset in operation.positions if offset != UNKNOWN
            }
        elif isinstance(operation, Poll):
            yield from _poll(log, operation, next_offsets[operation.process])


def _poll(log: _Log, poll: Poll, next_offsets: dict[Part, int]) -> Iterator[Anomaly]:
    """Check one poll and advance next_offsets, the positions of the consumer."""
    polled: set[Part] = set()
    for record in poll.records:
        expected = next_offsets.get(record.part, record.offset)
        prefix = "int-" if record.part in polled else ""
        polled.add(record.part)
        next_offsets[record.part] = record.offset + 1
        if record.offset < expected:
            yield Anomaly(
                f"{prefix}nonmonotonic-poll",
                f"{poll.process} polled {_where(record)}, offset {expected} was next",
            )
        elif skipped := log.between(record.part, expected, record.offset, committed=poll.committed):
            values = ", ".join(_where_at(log, record.part, offset) for offset in skipped[:3])
            yield Anomaly(
                f"{prefix}poll-skip",
                f"{poll.process} polled {_where(record)}, offset {expected} was next;"
                f" {len(skipped)} skipped: {values}",
            )


def _sends(log: _Log) -> Iterator[Anomaly]:
    last: dict[tuple[str, Part], Record] = {}
    for write in log.writes:
        if write.outcome is Outcome.FAIL or not write.ordered:
            continue
        sent: set[Part] = set()
        for record in write.sends:
            if record.offset == UNKNOWN:
                continue
            before = last.get((write.process, record.part))
            if before is not None and before.offset >= record.offset:
                prefix = "int-" if record.part in sent else ""
                yield Anomaly(
                    f"{prefix}nonmonotonic-send",
                    f"{write.process} sent {_where(record)} after {_where(before)}",
                )
            sent.add(record.part)
            last[write.process, record.part] = record


def _stale_reads(history: Iterable[Operation], lease_s: float) -> Iterator[Anomaly]:
    acks: dict[Part, list[tuple[float, int]]] = defaultdict(list)
    responses: list[Latest] = []
    for operation in history:
        if isinstance(operation, Ack):
            acks[operation.part].append((operation.ended_s, operation.offset))
        elif isinstance(operation, Latest):
            responses.append(operation)
    highest = {part: _running_max(sorted(found)) for part, found in acks.items()}
    for response in responses:
        times, offsets = highest.get(response.part, ([], []))
        count = bisect_left(times, response.began_s - lease_s)
        if count and response.end <= offsets[count - 1]:
            first = bisect_left(offsets, response.end)
            yield Anomaly(
                "stale-read",
                f"{response.process}, asked at {response.began_s:.3f} s, responded at"
                f" {response.ended_s:.3f} s that {_name(response.part)} ends at {response.end};"
                f" offset {offsets[first]} was acknowledged at {times[first]:.3f} s, the lease is"
                f" {lease_s:g} s",
            )


def _lost_commits(history: Iterable[Operation]) -> Iterator[Anomaly]:
    """Find fetched offsets below a commit that was acknowledged earlier, unless a lower commit may
    have followed it.
    """
    commits: dict[tuple[str, Part], list[Commit]] = defaultdict(list)
    responses: list[Committed] = []
    member_commits: dict[str, list[float]] = defaultdict(list)
    for operation in history:
        if isinstance(operation, Committed):
            responses.append(operation)
        elif isinstance(operation, Commit):
            commits[operation.group, operation.part].append(operation)
            if operation.member and operation.outcome is Outcome.OK:
                member_commits[operation.member].append(operation.began_s)
        elif isinstance(operation, Write):
            for consumed in operation.consumed:
                began_s = operation.commit_began_s
                commit = Commit(
                    operation.group,
                    consumed.part,
                    consumed.end,
                    operation.outcome,
                    began_s,
                    operation.ended_s,
                )
                commits[operation.group, consumed.part].append(commit)
    acked = {
        key: _running_max(
            sorted(
                (commit.ended_s, commit.offset) for commit in found if commit.outcome is Outcome.OK
            )
        )
        for key, found in commits.items()
    }
    for response in responses:
        key = (response.group, response.part)
        times, offsets = acked.get(key, ([], []))
        count = bisect_left(times, response.began_s)
        if (
            count
            and response.offset < offsets[count - 1]
            and (lost := _lost_commit(response, commits[key], member_commits)) is not None
        ):
            yield Anomaly(
                "lost-commit",
                f"group {response.group!r} is at offset {response.offset} of"
                f" {_name(response.part)}, asked at {response.began_s:.3f} s; its commit of"
                f" {lost.offset} was acknowledged at {lost.ended_s:.3f} s",
            )


def _lost_commit(
    response: Committed, commits: Sequence[Commit], member_commits: Mapping[str, Sequence[float]]
) -> Commit | None:
    """Return the first commit above the response that was acknowledged before the request and that
    no lower commit can have followed in time.

    member_commits: the starts of the acknowledged commits of each member, in order.
    """
    last_s = max(
        (
            _latest_s(commit, member_commits)
            for commit in commits
            if commit.outcome is not Outcome.FAIL
            and commit.offset <= response.offset
            and commit.began_s < response.ended_s
        ),
        default=-inf,
    )
    for commit in commits:
        if (
            commit.outcome is Outcome.OK
            and commit.offset > response.offset
            and last_s <= commit.began_s
            and commit.ended_s < response.began_s
        ):
            return commit
    return None


def _latest_s(commit: Commit, member_commits: Mapping[str, Sequence[float]]) -> float:
    """Return the time up to which a commit may take effect."""
    if commit.outcome is Outcome.OK:
        return commit.ended_s
    later = member_commits.get(commit.member, ())
    at = bisect_left(later, commit.ended_s)
    return later[at] if at < len(later) else inf


def _running_max(found: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    times: list[float] = []
    offsets: list[int] = []
    for ended_s, offset in found:
        times.append(ended_s)
        offsets.append(max(offset, offsets[-1] if offsets else offset))
    return times, offsets


def _exactly_once(log: _Log) -> Iterator[Anomaly]:
    """Check that committed transactions divide the input of a group: no record is consumed twice,
    and none is left out below the group's offset.

    A transaction of unknown outcome counts as committed if one of its values was polled; each has
    values.
    """
    spans: dict[tuple[str, Part], list[tuple[Consumed, Write]]] = defaultdict(list)
    for write in log.writes:
        if write.outcome is Outcome.OK or any(log.is_seen(record) for record in write.sends):
            for consumed in write.consumed:
                spans[write.group, consumed.part].append((consumed, write))
    committed = {
        (response.group, response.part): response.offset
        for response in log.history
        if isinstance(response, Committed)
    }
    for (group, part), found in spans.items():
        found.sort(key=lambda item: (item[0].first, item[0].end))
        reached, by = 0, ""
        for consumed, write in found:
            if consumed.first < reached:
                text = (
                    f"offsets {consumed.first} to {min(reached, consumed.end) - 1} of {_name(part)}"
                    f" by {_transaction(write)} and {by}"
                )
                yield Anomaly("consumed-twice", text)
            elif consumed.first > reached:
                text = (
                    f"offsets {reached} to {consumed.first - 1} of {_name(part)}, then"
                    f" {_transaction(write)}"
                )
                yield Anomaly("consume-skip", text)
            if consumed.end > reached:
                reached, by = consumed.end, _transaction(write)
        at = committed.get((group, part), UNKNOWN)
        if at > reached:
            yield Anomaly(
                "consume-skip",
                f"offsets {reached} to {at - 1} of {_name(part)}, group {group!r} is at {at}",
            )


def _name(part: Part) -> str:
    return f"{part[0]}-{part[1]}"


def _at(part: Part, offset: int) -> str:
    return f"{_name(part)} offset {offset}"


def _where(record: Record) -> str:
    place = "an unknown offset" if record.offset == UNKNOWN else f"offset {record.offset}"
    return f"{record.value!r} ({_name(record.part)} {place})"


def _where_at(log: _Log, part: Part, offset: int) -> str:
    return f"{'|'.join(map(repr, sorted(log.at[part][offset])))} at {offset}"


def _transaction(write: Write) -> str:
    kind = "transaction" if write.is_transaction else "write"
    commit = (
        "" if write.commit_began_s == inf else f", commit asked at {write.commit_began_s:.3f} s"
    )
    return (
        f"{kind} of {write.process} from {write.began_s:.3f} s{commit}, {write.outcome} at"
        f" {write.ended_s:.3f} s"
    )
