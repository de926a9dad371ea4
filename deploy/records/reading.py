"""Read records from brokers for `penstock consume`."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

from confluent_kafka import KafkaError

from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.kafka import Kafka, accepted_by_client, interruptible
from penstock.deploy.errors import UsageError
from penstock.deploy.interrupts import Interrupts
from penstock.deploy.output import counted, remark
from penstock.deploy.records.stored_batch import StoredBatch, stored_batch
from penstock.deploy.records.writer import RecordWriter
from penstock.protocol.client.errors import KafkaFailed

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

_POLL_S: Final = 0.2
_STALLED_S: Final = 1.0
"""If a partition yields no record for this long although its end is not reached, its next batch is
examined.
"""
_SILENT_S: Final = 2.0
"""If no record arrives within this time, a remark on the terminal explains what the command is
waiting for.
"""
_COMMITTED_S: Final = 10.0
_HEADERS_OF: Final[Callable[["Message[bytes, bytes]"], list[tuple[str, bytes | None]] | None]] = (
    methodcaller("headers")
)
"""Calls `headers` indirectly. For a key that is not UTF-8, confluent-kafka 2.16 sets an exception
and returns a list with a null pointer. CPython converts this to SystemError, except in a direct
call that it has specialized, which would end the process with SIGSEGV.
"""
_UNDECODED: Final = (
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError.INVALID_MSG,
)


@dataclass(frozen=True, slots=True)
class Begin:
    """Start position in each partition: a time, an offset, or a number of offsets before the end;
    the earliest offset if all are None.
    """

    time_ms: int | None = None
    offset: int | None = None
    before_end: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, and how fast to read. None means no limit. until_end: stop at the current end
    of the log. rate: records per second, 0 for no limit. on_error: how to handle unreadable
    records.
    """

    records_max: int | None
    timeout_s: float | None
    until_end: bool
    rate: float = 0.0
    on_error: Literal["raise", "skip"] = "raise"


@dataclass(frozen=True, slots=True)
class Source:
    """The partitions to read; all partitions if empty."""

    topic: str
    partitions: Sequence[int]
    group: str | None
    begin: Begin
    isolation: str


def parse_begin(text: str) -> Begin:
    """Parse earliest, latest, N or -N. Raises UsageError."""
    if text in {"earliest", "latest"}:
        return Begin() if text == "earliest" else Begin(before_end=0)
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"--offset {text!r} is not allowed: earliest, latest, N or -N") from None
    return Begin(before_end=-number) if text.startswith("-") else Begin(offset=number)


class Printed(NamedTuple):
    """is_interrupted: whether reading was ended by Ctrl-C."""

    records: int = 0
    is_interrupted: bool = False


def read_records(bootstrap: str, source: Source, limits: Limits, writer: RecordWriter) -> Printed:
    """Write records until a limit is reached. Raises KafkaFailed, BadRecord."""
    kafka = Kafka(bootstrap)
    there = [part.partition for part in kafka.topic(source.topic).partitions]
    if unknown := sorted(set(source.partitions) - set(there)):
        raise UsageError(
            f"--partition {unknown[0]}: {source.topic} has {counted(len(there), 'partition')}"
        )
    if source.group is not None and source.partitions:
        raise UsageError(
            "--group and --partition are mutually exclusive: the group assigns partitions"
        )
    if source.group is not None and limits.until_end:
        raise UsageError("--group and --until-end are mutually exclusive: use --timeout SECONDS")
    partitions = list(source.partitions or there)
    is_earliest = source.begin == Begin()
    consumer = kafka.consumer(
        group_id=source.group or "penstock-cli",
        auto_offset_reset="earliest" if is_earliest else "latest",
        enable_auto_commit=source.group is not None,
        enable_auto_offset_store=False,
        enable_partition_eof=limits.until_end,
        isolation_level=source.isolation,
    )
    try:
        bounds = kafka.offsets(source.topic, partitions) if _needs_bounds(source, limits) else {}
        starts: dict[int, int] = {}
        if source.group is None:
            starts = _starts(kafka, source, bounds, partitions)
            _assign(consumer, source.topic, starts)
        else:
            consumer.subscribe([source.topic])
        unread = {
            at: (max(earliest, starts.get(at, 0)), latest)
            for at, (earliest, latest) in bounds.items()
            if limits.until_end and starts.get(at, 0) < latest
        }
        if limits.until_end and not unread:
            return Printed()
        with Brokers(bootstrap) as brokers:
            return _Reading(consumer, brokers, source, limits, writer, starts, unread).run()
    finally:
        consumer.close()


class _Reading:
    """Reads until a limit. starts: the start offsets of partitions; empty for a group. unread: with
    `until_end`, the offsets to read from each partition.

    Batches at which librdkafka gets stuck, and those with header keys that are not UTF-8, are
    fetched and decoded here.
    """

    def __init__(  # noqa: PLR0917 - it has one caller
        self,
        consumer: "Consumer",
        brokers: Brokers,
        source: Source,
        limits: Limits,
        writer: RecordWriter,
        starts: Mapping[int, int],
        unread: Mapping[int, tuple[int, int]],
    ) -> None:
        self._consumer, self._brokers, self._topic = consumer, brokers, source.topic
        self._limits, self._writer, self._starts = limits, writer, starts
        self._is_earliest = source.begin == Begin()
        self._reads_committed = source.isolation == "read_committed"
        self._has_group = source.group is not None
        """Whether offsets are committed. Only offsets of printed records are committed, so that no
        record is lost with Ctrl-C.
        """
        self._ends = {at: end for at, (_, end) in unread.items()}
        """End offsets of the partitions that are not read completely yet."""
        self._expected = {at: start for at, (start, _) in unread.items()}
        """With `until_end`: the offset after the last record read from each partition."""
        self._printed = 0
        self._skipped = 0
        self._misplaced = 0
        """Number of records whose offset is beyond the end of their batch. Kafka's consumers return
        these records, too.
        """
        self._next: dict[int, int] = {}
        """The offset after the last record of each partition."""
        self._passed: dict[int, int] = {}
        """The offset after each skipped batch."""
        self._first_ends: dict[int, int] = {}
        """The first known log end of each partition that is read from its end."""
        self._batches: dict[int, StoredBatch] = {}
        """The last batch of each partition whose headers were decoded here."""
        self._stalled: dict[tuple[int, int], float] = {}
        """The time since which a partition has been stuck at an offset below its end."""

    def run(self) -> Printed:
        is_interrupted = False
        try:
            with Interrupts() as interrupts:
                self._read(interrupts)
        except KeyboardInterrupt:
            is_interrupted = True
        self._remark()
        return Printed(self._printed, is_interrupted)

    def _read(self, interrupts: Interrupts) -> None:
        began_at = heard_at = time.monotonic()
        is_silent = sys.stderr.isatty() and not self._limits.until_end
        while not self._is_over():
            interrupts.check()
            message = interruptible(partial(self._consumer.poll, _POLL_S))
            if message is None:
                if self._pass_stalled():
                    heard_at = time.monotonic()
                    continue
                if is_silent and time.monotonic() - began_at >= _SILENT_S:
                    is_silent = False
                    remark(self._waiting())
                timeout_s = self._limits.timeout_s
                if timeout_s is not None and time.monotonic() - heard_at >= timeout_s:
                    break
                continue
            error = message.error()
            if error is None:
                is_silent = False
                self._take(message)
                if self._limits.rate:
                    due_at = began_at + self._printed / self._limits.rate
                    time.sleep(max(0.0, due_at - time.monotonic()))
                heard_at = time.monotonic()
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends.pop(cast("int", message.partition()), None)
            elif not error.retriable():
                self._pass_error(message, error)
                heard_at = time.monotonic()

    def _waiting(self) -> str:
        """Return a remark that explains why no record is printed."""
        older = (
            "" if self._is_earliest or not self._starts else "; --from-beginning prints older ones"
        )
        return f"waiting for records of {self._topic}{older}; Ctrl-C ends"

    def _remark(self) -> None:
        if self._misplaced:
            remark(
                f"{counted(self._misplaced, 'record')} with an offset beyond the end of its batch"
            )
        if self._skipped:
            remark(f"left out {counted(self._skipped, 'offset')} that cannot be read")

    def _pass_error(self, message: "Message[bytes, bytes]", error: KafkaError) -> None:
        """Continue after a batch that librdkafka cannot decode. Raises KafkaFailed."""
        place = cast("int", message.partition()), cast("int", message.offset())
        if error.code() in _UNDECODED and (
            place[1] < self._passed.get(place[0], 0) or self._pass_batch(*place)
        ):
            return
        raise KafkaFailed(f"{error.str()} ({error.name()})")

    def _pass_stalled(self) -> bool:
        """Return whether a partition was stuck at a batch that librdkafka cannot decode. If so,
        continue after that batch.
        """
        now = time.monotonic()
        passed = False
        for part in self._consumer.position(self._consumer.assignment()):
            low, high = self._consumer.get_watermark_offsets(part, cached=True)
            at = max(self._position_of(part, low, high), self._passed.get(part.partition, -1))
            place = (part.partition, at)
            if not 0 <= at < high:
                continue
            since = self._stalled.setdefault(place, now)
            if now - since >= _STALLED_S:
                self._stalled[place] = now
                passed = self._pass_batch(*place) or passed
        return passed

    def _position_of(self, part: "TopicPartition", low: int, high: int) -> int:
        """Return the next offset of a partition, or -1 if it is unknown. low, high: the known
        bounds of its log.
        """
        if part.offset >= 0:
            return part.offset
        start = self._starts.get(part.partition, -1)
        if start < 0 and not self._starts:
            start = self._consumer.committed([part], timeout=_COMMITTED_S)[0].offset
        if start >= 0:
            return start
        # librdkafka does not report a position before the first record, not even at the end of the
        # log.
        if self._is_earliest:
            return low
        return self._first_ends.setdefault(part.partition, high) if high >= 0 else high

    def _pass_batch(self, partition: int, offset: int) -> bool:
        """Print the readable records of the batch at this offset, and continue after it. Return
        False if the batch is valid. Raises KafkaFailed unless records may be skipped.
        """
        found = self._batch_at(partition, offset)
        if found is None or found.is_control:
            return False
        for record in found.records:
            if record.offset >= offset and not self._is_over():
                headers = _shown(record.headers)
                place = (self._topic, partition, record.offset)
                self._print(place, record.timestamp_ms, record.key, record.value, headers)
        for start, end, what in found.lost:
            first = found.base_offset + start
            if found.base_offset + end <= offset:
                continue
            if self._limits.on_error == "raise":
                self._writer.flush()
                raise KafkaFailed(
                    f"{self._topic}-{partition} at offset {first}: {what};"
                    " --on-error skip skips such records"
                )
            self._skipped += end - start
        from confluent_kafka import TopicPartition

        self._consumer.seek(TopicPartition(self._topic, partition, found.next_offset))
        self._store(partition, found.next_offset)
        self._passed[partition] = self._expected[partition] = found.next_offset
        if found.next_offset >= self._ends.get(partition, found.next_offset + 1):
            self._ends.pop(partition, None)
        return True

    def _batch_at(self, partition: int, offset: int) -> StoredBatch | None:
        return stored_batch(
            self._brokers, self._topic, partition, offset, committed=self._reads_committed
        )

    def _pass_misplaced(self, partition: int, offset: int, end: int) -> bool:
        """Skip a batch that contains a record with an offset after the batch: such a record is not
        the end of the partition. Return False if there is no such batch before the offset.
        """
        at = self._expected.get(partition, end)
        while at < min(offset, end):
            found = self._batch_at(partition, at)
            if found is None:
                return False
            if found.lost:
                return self._pass_batch(partition, at)
            at = found.next_offset
        return False

    def _is_over(self) -> bool:
        if self._limits.until_end and not self._ends:
            return True
        return self._limits.records_max is not None and self._printed >= self._limits.records_max

    def _take(self, message: "Message[bytes, bytes]") -> None:
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        if self._limits.until_end:
            end = self._ends.get(partition, 0)
            if offset + 1 >= end and self._pass_misplaced(partition, offset, end):
                return
            if offset >= end:
                self._ends.pop(partition, None)
                return
            self._expected[partition] = offset + 1
        if self._starts and offset < self._next.get(partition, 0):
            self._misplaced += 1  # the previous record
        self._next[partition] = offset + 1
        _kind, timestamp_ms = message.timestamp()
        try:
            headers = cast("list[tuple[str, bytes | None]]", _HEADERS_OF(message) or [])
        except (SystemError, UnicodeDecodeError):
            headers = self._headers_at(partition, offset)
        place = (message.topic() or "", partition, offset)
        self._print(place, timestamp_ms, message.key(), message.value(), headers)
        self._store(partition, offset + 1)
        if offset + 1 >= self._ends.get(partition, offset + 2):
            del self._ends[partition]

    def _headers_at(self, partition: int, offset: int) -> list[tuple[str, bytes | None]]:
        """Return the headers of a record if confluent-kafka cannot decode one of their keys."""
        batch = self._batches.get(partition)
        if batch is None or not batch.base_offset <= offset < batch.next_offset:
            batch = self._batch_at(partition, offset)
        if batch is not None:
            self._batches[partition] = batch
            for record in batch.records:
                if record.offset == offset:
                    return _shown(record.headers)
        # Retention or compaction has since removed the record.
        self._writer.flush()
        raise KafkaFailed(
            f"{self._topic}-{partition} at offset {offset}: a header key is not UTF-8, and the"
            " record no longer exists"
        )

    def _print(
        self,
        place: tuple[str, int, int],
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        if self._writer.write(place, timestamp_ms, key, value, headers):
            self._printed += 1
            self._writer.flush()

    def _store(self, partition: int, next_offset: int) -> None:
        """Include this offset in the next commit of the group."""
        if not self._has_group:
            return
        from confluent_kafka import TopicPartition

        self._consumer.store_offsets(offsets=[TopicPartition(self._topic, partition, next_offset)])


def _shown(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers, with U+FFFD in keys that are not UTF-8."""
    return [
        (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), value)
        for name, value in headers
    ]


def _needs_bounds(source: Source, limits: Limits) -> bool:
    return (
        limits.until_end
        or source.begin.before_end not in {None, 0}
        or (source.begin.time_ms is not None)
    )


def _starts(
    kafka: Kafka, source: Source, bounds: Mapping[int, tuple[int, int]], partitions: Sequence[int]
) -> dict[int, int]:
    """Return the first offset to read in each partition, or librdkafka's constant for its start or
    end.
    """
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

    begin = source.begin
    if begin.time_ms is not None:
        ends = {at: latest for at, (_, latest) in bounds.items()}
        return kafka.offsets_for_time(source.topic, ends, begin.time_ms)
    if begin.offset is not None:
        return dict.fromkeys(partitions, begin.offset)
    if begin.before_end is None:
        return dict.fromkeys(partitions, OFFSET_BEGINNING)
    if not begin.before_end:
        return {at: bounds[at][1] if at in bounds else OFFSET_END for at in partitions}
    return {at: max(bounds[at][0], bounds[at][1] - begin.before_end) for at in partitions}


def _assign(consumer: "Consumer", topic: str, starts: Mapping[int, int]) -> None:
    from confluent_kafka import TopicPartition

    with accepted_by_client(f"records of {topic!r} cannot be read from this offset"):
        wanted = [TopicPartition(topic, index, start) for index, start in starts.items()]
    consumer.assign(wanted)
