"""Parse the options of reads: those of `format("kafka")`, with the same defaults, checks and
errors, and Penstock's own options.

`kafka.*` options configure connections to brokers: `isolation.level` has an effect, a few are
rejected, and a warning lists the others, so that a job can migrate by changing only its format.
Names are case-insensitive. Source: Spark `KafkaSourceProvider`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from penstock.lake.arrow.cluster import ALL, check_tail
from penstock.lake.fetch.unreadable import RAISE, check_on_error
from penstock.lake.spark.errors import InvalidOption, OffsetsMismatch
from penstock.lake.spark.offsets import (
    EARLIEST,
    LATEST,
    TopicPartition,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
    scala_set,
)
from penstock.stream.format.manifest.model import in_snapshot

STRATEGIES: Final = ("subscribe", "subscribepattern", "assign")
_KAFKA: Final = (
    *STRATEGIES,
    "startingoffsets",
    "endingoffsets",
    "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp",
    "startingtimestamp",
    "endingtimestamp",
    "startingoffsetsbytimestampstrategy",
    "failondataloss",
    "minpartitions",
    "maxrecordsperpartition",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms",
    "groupidprefix",
    "includeheaders",
)
_OURS: Final = (
    "store",
    "cluster",
    "columns",
    "maxbytespertask",
    "maxbytespertrigger",
    "queryid",
    "initialoffsetslocation",
    "allowvolatilestart",
    "readleasettl",
    "snapshot",
    "on_error",
    "wal_store",
    "tail",
)
_WITHOUT_EFFECT: Final = ("kafkaconsumer.polltimeoutms", "groupidprefix")
_LEASE_MS_MAX: Final = 7 * 86_400_000
_INT64_MAX: Final = (1 << 63) - 1
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TIME: Final = re.compile(r"(-?[0-9]+)([a-z]*)")
_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics to read; exactly one of the fields is set. `pattern` is a Python regular
    expression for whole names.
    """

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()
    snapshot: str = ""
    """Read the topics of this snapshot; topic names already include it."""

    def selects(self, topic: str) -> bool:
        """Return whether the options select this topic if it exists."""
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names or any(item.topic == topic for item in self.partitions)


@dataclass(frozen=True, slots=True)
class Earliest:
    pass


@dataclass(frozen=True, slots=True)
class Latest:
    pass


@dataclass(frozen=True, slots=True)
class AtOffsets:
    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """Topic ids by name, if the offsets are from a checkpoint."""


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The first record of each partition at or after its timestamp."""

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    timestamp_ms: int


Limit = Earliest | Latest | AtOffsets | AtTimestamps | AtTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    store: str
    cluster: str
    wal_store: str
    tail: str
    topics: Topics
    starting: Limit
    ending: Limit
    latest_if_no_match: bool
    """The option startingOffsetsByTimestampStrategy: whether to use the latest offset if no record
    is late enough.
    """

    fail_on_data_loss: bool
    on_error: str
    """How to handle records that cannot be read: raise or skip."""

    include_headers: bool
    columns: tuple[str, ...]
    read_committed: bool
    min_partitions: int
    max_records_per_partition: int | None
    max_bytes_per_task: int
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_ms: int
    query_id: str
    initial_offsets_location: str
    read_lease_ttl_ms: int
    retries: int
    retry_interval_ms: int


def parse(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options. Raise InvalidOption."""
    given = {name.lower(): value for name, value in options.items()}
    snapshot = given.get("snapshot", "").strip()
    if snapshot and streaming:
        raise InvalidOption("option 'snapshot' is for batch queries: a snapshot never changes")
    starting, ending = (_stream_limits if streaming else _batch_limits)(given)
    check_common(given)
    if not streaming:
        _check_order(starting, ending)
    elif (
        is_volatile(starting)
        and not (given.get("queryid") or given.get("initialoffsetslocation"))
        and not flag(given, "allowVolatileStart")
    ):
        raise InvalidOption(
            "a streaming query that starts at 'latest' or at a timestamp must store its start, "
            "or a crash in its first micro-batch loses records: set the option 'queryId' to a "
            "unique name (for the store of the cluster), or 'initialOffsetsLocation' to a "
            "store URL; or start at 'earliest' or at offsets; or set 'allowVolatileStart' to "
            "true to accept the risk"
        )
    return ReadOptions(
        store=given["store"].strip(),
        cluster=given.get("cluster", "").strip(),
        wal_store=given.get("wal_store", "").strip(),
        tail=_tail(given),
        topics=_topics_in(_topics(given), snapshot),
        starting=_limit_in(starting, snapshot),
        ending=_limit_in(ending, snapshot),
        latest_if_no_match=_strategy(given) == "latest",
        fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
        on_error=_on_error(given),
        include_headers=flag(given, "includeHeaders"),
        columns=columns_in(given),
        read_committed=_isolation(given) == "read_committed",
        min_partitions=_positive(given, "minPartitions") or 1,
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        max_bytes_per_task=_positive(given, "maxBytesPerTask") or 128 << 20,
        max_offsets_per_trigger=_number(given, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_number(given, "minOffsetsPerTrigger"),
        max_bytes_per_trigger=_positive(given, "maxBytesPerTrigger"),
        max_trigger_delay_ms=_time_ms(given, "maxTriggerDelay", "15m"),
        query_id=given.get("queryid", ""),
        initial_offsets_location=given.get("initialoffsetslocation", ""),
        read_lease_ttl_ms=_time_ms(given, "readLeaseTtl", "1h"),
        retries=_positive(given, "fetchOffset.numRetries") or 3,
        retry_interval_ms=_time_ms(given, "fetchOffset.retryIntervalMs", "1000"),
    )


def check_common(options: Mapping[str, str]) -> None:
    """Check the options that batch and streaming queries share, in the same order as Kafka's
    source. Raise InvalidOption.
    """
    given = {name.lower(): value for name, value in options.items()}
    _topics(given)
    _positive(given, "minPartitions")
    _positive(given, "maxRecordsPerPartition")
    _check_kafka_options(given)
    _on_error(given)
    _tail(given)
    low, high = _number(given, "minOffsetsPerTrigger"), _number(given, "maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise InvalidOption(
            f"The value of minOffsetPerTrigger({low}) is higher than the"
            f" maxOffsetsPerTrigger({high})."
        )
    if not given.get("store", "").strip():
        raise InvalidOption(
            "Option 'store' must be specified: the store of the cluster, as in s3://bucket/prefix"
        )
    query_id = given.get("queryid")
    if _time_ms(given, "readLeaseTtl", "1h") > _LEASE_MS_MAX:
        raise InvalidOption("readLeaseTtl must be at most 7d")
    if query_id is not None:
        check_name("queryId", query_id)


def warnings(options: Mapping[str, str], *, streaming: bool) -> list[str]:
    """Return warnings about options that are accepted but have no effect."""
    given = {name.lower() for name in options}
    found: list[str] = []
    if not streaming:
        per_trigger = (
            "maxOffsetsPerTrigger",
            "minOffsetsPerTrigger",
            "maxTriggerDelay",
            "maxBytesPerTrigger",
        )
        found += [
            f"{name} option ignored in batch queries"
            for name in per_trigger
            if name.lower() in given
        ]
    ignored = sorted(
        name for name in given if name.startswith("kafka.") and name != "kafka.isolation.level"
    )
    ignored += [name for name in _WITHOUT_EFFECT if name in given]
    if ignored:
        found.append(
            "options for brokers and consumers have no effect, the store is read directly:"
            f" {', '.join(ignored)}"
        )
    for name in sorted(given):
        if name not in _KAFKA and name not in _OURS and not name.startswith("kafka."):
            near = get_close_matches(name, [*_KAFKA, *_OURS], n=1)
            found.append(f"unknown option {name}{f': did you mean {near[0]}?' if near else ''}")
    return found


# --- topics and limits ----------------------------------------------------------------------------


def _topics(given: Mapping[str, str]) -> Topics:
    strategies = [name for name in STRATEGIES if name in given]
    if len(strategies) != 1:
        begin = (
            "Only one of the following options can be specified"
            if strategies
            else "One of the following options must be specified"
        )
        raise InvalidOption(
            f"{begin} for Kafka source: {', '.join(STRATEGIES)}. See the docs for more details."
        )
    value = given[strategies[0]]
    if strategies[0] == "assign":
        if not value.strip().startswith("{"):
            raise InvalidOption(
                f"There are no partitions to assign: option 'assign' has the value '{value}'"
            )
        return Topics(partitions=tuple(parse_partitions(value)))
    if strategies[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not names:
            raise InvalidOption(
                f"There are no topics to subscribe to: option 'subscribe' has the value '{value}'"
            )
        return Topics(names=names)
    if not value.strip():
        raise InvalidOption(
            "The pattern to subscribe to is empty: option 'subscribePattern' has the value"
            f" '{value}'"
        )
    try:
        re.compile(value.strip())
    except (re.error, RecursionError) as error:
        raise InvalidOption(
            f"subscribePattern {value!r} is not a Python regular expression: {error}"
        ) from None
    return Topics(pattern=value.strip())


def _topics_in(topics: Topics, snapshot: str) -> Topics:
    return Topics(
        tuple(in_snapshot(name, snapshot) for name in topics.names),
        topics.pattern,
        tuple(_partition_in(item, snapshot) for item in topics.partitions),
        snapshot,
    )


def _limit_in(limit: Limit, snapshot: str) -> Limit:
    """Return the limit with the topic names in the snapshot."""
    match limit:
        case AtOffsets(offsets, topic_ids):
            found = {_partition_in(at, snapshot): to for at, to in offsets.items()}
            return AtOffsets(found, {} if snapshot else topic_ids)
        case AtTimestamps(times):
            return AtTimestamps({_partition_in(at, snapshot): to for at, to in times.items()})
        case _:
            return limit


def _partition_in(item: TopicPartition, snapshot: str) -> TopicPartition:
    return TopicPartition(in_snapshot(item.topic, snapshot), item.partition)


def _stream_limits(given: Mapping[str, str]) -> tuple[Limit, Limit]:
    if "endingoffsets" in given:
        raise InvalidOption("ending offset not valid in streaming queries")
    if "endingoffsetsbytimestamp" in given or "endingtimestamp" in given:
        raise InvalidOption("ending timestamp not valid in streaming queries")
    return _limit(given, "starting", Latest()), Latest()


def _batch_limits(given: Mapping[str, str]) -> tuple[Limit, Limit]:
    starting = _limit(given, "starting", Earliest())
    if isinstance(starting, Latest):
        raise InvalidOption("starting offset can't be latest for batch queries on Kafka")
    if isinstance(starting, AtOffsets):
        for item, offset in sorted(starting.offsets.items()):
            if offset == LATEST:
                raise InvalidOption(
                    f"startingOffsets for {item} can't be latest for batch queries on Kafka"
                )
    ending = _limit(given, "ending", Latest())
    if isinstance(ending, Earliest):
        raise InvalidOption("ending offset can't be earliest for batch queries on Kafka")
    if isinstance(ending, AtOffsets):
        for item, offset in sorted(ending.offsets.items()):
            if offset == EARLIEST:
                raise InvalidOption(
                    f"ending offset for {item} can't be earliest for batch queries on Kafka"
                )
    return starting, ending


def _limit(given: Mapping[str, str], which: str, default: Limit) -> Limit:
    """Return the limit by precedence: a timestamp for all partitions, timestamps by partition,
    offsets.
    """
    _strategy(given)
    if (text := given.get(f"{which}timestamp")) is not None:
        try:
            return AtTimestamp(int(text))
        except ValueError:
            raise InvalidOption(f"Expected a single long value, got {text.strip()}") from None
    if (text := given.get(f"{which}offsetsbytimestamp")) is not None:
        return AtTimestamps(parse_timestamps(text.strip()))
    text = given.get(f"{which}offsets", "").strip()
    if not text:
        return default
    known: dict[str, Limit] = {"earliest": Earliest(), "latest": Latest()}
    return known.get(text.lower()) or AtOffsets(*parse_offsets(text))


def _check_order(starting: Limit, ending: Limit) -> None:
    """Raise OffsetsMismatch if a start is after its end."""
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        starts, ends = starting.offsets, ending.offsets
    elif isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        starts, ends = starting.timestamps_ms, ending.timestamps_ms
    else:
        return
    if starts.keys() != ends.keys():
        raise OffsetsMismatch(
            "The specified start offset and end offset should have the same topic-partitions."
            f" Topic-partitions for start offset: {scala_set(starts)}, topic-partitions for end"
            f" offset: {scala_set(ends)}."
        )
    for item, start in sorted(starts.items()):
        if start > ends[item] >= 0:
            raise OffsetsMismatch(
                f"The specified start offset {start} is greater than the end offset {ends[item]} "
                f"for topic {item.topic} partition {item.partition}."
            )


def is_volatile(starting: Limit) -> bool:
    """Return whether the limit may resolve to a different offset later."""
    if isinstance(starting, AtOffsets):
        return LATEST in starting.offsets.values()
    return not isinstance(starting, Earliest)


# --- single values --------------------------------------------------------------------------------


def _check_kafka_options(given: Mapping[str, str]) -> None:
    if "kafka.auto.offset.reset" in given:
        raise InvalidOption(
            "Kafka option 'auto.offset.reset' is not supported. Instead set the source option"
            " 'startingoffsets' to 'earliest' or 'latest' to specify where to start. Structured"
            " Streaming manages which offsets are consumed internally, rather than relying on the"
            " kafkaConsumer to do it. This will ensure that no data is missed when new"
            " topics/partitions are dynamically subscribed. Note that 'startingoffsets' only"
            " applies when a new Streaming query is started, and that resuming will always pick up"
            " from where the query left off. See the docs for more details."
        )
    for what in ("key", "value"):
        if f"kafka.{what}.deserializer" in given:
            raise InvalidOption(
                f"Kafka option '{what}.deserializer' is not supported as {what}s are deserialized"
                " as byte arrays with ByteArrayDeserializer. Use DataFrame operations to"
                f" explicitly deserialize the {what}s."
            )
    for name in ("enable.auto.commit", "interceptor.classes"):
        if f"kafka.{name}" in given:
            raise InvalidOption(f"Kafka option '{name}' is not supported")
    _isolation(given)


def _isolation(given: Mapping[str, str]) -> str:
    level = given.get("kafka.isolation.level", "read_uncommitted").strip().lower()
    if level not in {"read_uncommitted", "read_committed"}:
        raise InvalidOption(
            f"kafka.isolation.level must be read_uncommitted or read_committed, got {level!r}"
        )
    return level


def _strategy(given: Mapping[str, str]) -> str:
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in {"error", "latest"}:
        raise InvalidOption(
            f"startingOffsetsByTimestampStrategy must be error or latest, got {strategy!r}"
        )
    return strategy


def _tail(given: Mapping[str, str]) -> str:
    try:
        return check_tail(given.get("tail", ALL).strip(), given.get("wal_store", "").strip())
    except ValueError as error:
        raise InvalidOption(f"option 'tail': {error}") from None


def _on_error(given: Mapping[str, str]) -> str:
    try:
        return check_on_error(given.get("on_error", RAISE).strip().lower())
    except ValueError as error:
        raise InvalidOption(f"option {error}") from None


def columns_in(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of the option, or none for the default ones."""
    return tuple(name.strip() for name in given.get("columns", "").split(",") if name.strip())


def flag(given: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Parse an option of a read or a write. Raise InvalidOption."""
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise InvalidOption(f'{name} must be true or false. For input string: "{text}"')
    return text == "true"


def check_name(option: str, name: str) -> None:
    """Raise InvalidOption if the name of a query or of a series of writes is not valid."""
    if _NAME.fullmatch(name) is None:
        raise InvalidOption(
            f"{option} must be 1 to 128 characters from A-Z, a-z, 0-9, '.', '_' and '-', got"
            f" {name!r}"
        )


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = _INT64_MAX + 1
    if abs(value) > _INT64_MAX:
        raise InvalidOption(f'{name} must be a number. For input string: "{text}"')
    return value


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value = _number(given, name)
    if value is not None and value <= 0:
        raise InvalidOption(f"{name} must be positive")
    return value


def _time_ms(given: Mapping[str, str], name: str, default: str) -> int:
    """Parse a duration like Spark's `timeStringAsMs`: milliseconds, or a number with a unit."""
    text = given.get(name.lower(), default).strip().lower()
    found = _TIME.fullmatch(text)
    if found is None or found[2] not in _UNITS_MS or int(found[1]) < 0:
        raise InvalidOption(f"{name} must be a time like 50s, 15m or 1h, got {text!r}")
    return int(found[1]) * _UNITS_MS[found[2]]
