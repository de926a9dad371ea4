"""Read records from brokers for `penstock consume`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from confluent_kafka import KafkaError

from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.errors import KafkaFailed, UsageError
from penstock.deploy.records.writer import RecordWriter

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Begin:
    """Where to begin in each partition: at a time, else at an offset, else so many offsets before
    the end. All None: at the earliest offset.
    """

    time_ms: int | None = None
    offset: int | None = None
    before_end: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, and how fast to read; None for no limit. until_end: at what is the end of the
    log at the start. rate: records in a second, 0 for no limit.
    """

    records_max: int | None
    timeout_s: float | None
    until_end: bool
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Source:
    """What to read. partitions: all if there are none."""

    topic: str
    partitions: Sequence[int]
    group: str | None
    begin: Begin
    isolation: str


def parse_begin(text: str, time_ms: int | None = None) -> Begin:
    """Read earliest, latest, N or -N. Raises UsageError."""
    if time_ms is not None:
        return Begin(time_ms=time_ms)
    if text in {"earliest", "latest"}:
        return Begin() if text == "earliest" else Begin(before_end=0)
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"--offset {text!r} is not allowed: earliest, latest, N or -N") from None
    return Begin(before_end=-number) if text.startswith("-") else Begin(offset=number)


def read_records(bootstrap: str, source: Source, limits: Limits, writer: RecordWriter) -> int:
    """Write records until a limit is reached; return how many. Raises KafkaFailed, BadRecord."""
    kafka = Kafka(bootstrap)
    there = [part.partition for part in kafka.topic(source.topic).partitions]
    if unknown := sorted(set(source.partitions) - set(there)):
        raise UsageError(f"--partition {unknown[0]}: {source.topic} has {len(there)} partitions")
    if source.group is not None and source.partitions:
        raise UsageError("--group and --partition exclude each other: the group assigns partitions")
    if source.group is not None and limits.until_end:
        raise UsageError("--group and --until-end exclude each other: use --timeout SECONDS")
    partitions = list(source.partitions or there)
    is_earliest = source.begin == Begin()
    consumer = kafka.consumer(
        group_id=source.group or "penstock-cli",
        auto_offset_reset="earliest" if is_earliest else "latest",
        enable_auto_commit=source.group is not None,
        enable_partition_eof=limits.until_end,
        isolation_level=source.isolation,
    )
    try:
        bounds = kafka.offsets(source.topic, partitions) if _needs_bounds(source, limits) else {}
        ends = {at: latest for at, (_, latest) in bounds.items()} if limits.until_end else {}
        if source.group is None:
            starts = _starts(kafka, source, bounds, partitions)
            ends = {at: end for at, end in ends.items() if starts.get(at, 0) < end}
            _assign(consumer, source.topic, starts)
        else:
            consumer.subscribe([source.topic])
        if limits.until_end and not ends:
            return 0
        return _Reading(consumer, limits, writer, ends).run()
    finally:
        consumer.close()


class _Reading:
    """Reads until a limit. ends: the partitions that are not read to their end yet."""

    def __init__(
        self, consumer: "Consumer", limits: Limits, writer: RecordWriter, ends: Mapping[int, int]
    ) -> None:
        self._consumer, self._limits, self._writer = consumer, limits, writer
        self._ends = dict(ends)
        self._printed = 0

    def run(self) -> int:
        began_at = heard_at = time.monotonic()
        while not self._is_over():
            message = self._consumer.poll(_POLL_S)
            if message is None:
                timeout_s = self._limits.timeout_s
                if timeout_s is not None and time.monotonic() - heard_at >= timeout_s:
                    break
                continue
            error = message.error()
            if error is None:
                self._take(message)
                if self._limits.rate:
                    due_at = began_at + self._printed / self._limits.rate
                    time.sleep(max(0.0, due_at - time.monotonic()))
                heard_at = time.monotonic()
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends.pop(cast("int", message.partition()), None)
            elif not error.retriable():
                raise KafkaFailed(f"{error.str()} ({error.name()})")
        return self._printed

    def _is_over(self) -> bool:
        if self._limits.until_end and not self._ends:
            return True
        return self._limits.records_max is not None and self._printed >= self._limits.records_max

    def _take(self, message: "Message[bytes, bytes]") -> None:
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        if self._limits.until_end and offset >= self._ends.get(partition, 0):
            self._ends.pop(partition, None)
            return
        _kind, timestamp_ms = message.timestamp()
        headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
        place = (message.topic() or "", partition, offset)
        if self._writer.write(place, timestamp_ms, message.key(), message.value(), headers):
            self._writer.flush()
            self._printed += 1
        if offset + 1 >= self._ends.get(partition, offset + 2):
            del self._ends[partition]


def _needs_bounds(source: Source, limits: Limits) -> bool:
    return (
        limits.until_end
        or source.begin.before_end not in {None, 0}
        or (source.begin.time_ms is not None)
    )


def _starts(
    kafka: Kafka, source: Source, bounds: Mapping[int, tuple[int, int]], partitions: Sequence[int]
) -> dict[int, int]:
    """Return the first offset to read of each partition, or what librdkafka calls its ends."""
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

    consumer.assign([TopicPartition(topic, index, start) for index, start in starts.items()])
