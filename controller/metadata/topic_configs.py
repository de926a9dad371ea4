"""Topic configs with Kafka's names, types and defaults, and their effect in Penstock.

Names, defaults and accepted values are those of Kafka 4.2 without tiered storage, except that NaN
is rejected. The `doc` of a config describes where its effect differs.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from penstock.base import table_configs as tables

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
INT32_MIN = -INT32_MAX - 1
INT64_MIN = -INT64_MAX - 1
VALUE_CHARS_MAX = 4_096
SHOWN_CHARS_MAX = 200
SCHEMA_CHARS_MAX = 32_767
"""Maximum length of a string in Kafka's protocol, in bytes."""
RECORD_VALIDATION = "record.validation"
VALIDATES_ALL = "full"
VALIDATES_SAMPLES = "sampled"
VALIDATES_HEADERS = "header"
_HOUR_MS = 3_600_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"([+-]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)[dDfF]?")
"""The pattern is unambiguous, so that backtracking is cheap: if a number could match in two ways,
4,096 digits would take 0.4 s of CPU time.
"""
_THROTTLED = r"[0-9]+:[0-9]+"


class ConfigType(IntEnum):
    """Config types with the numbers of `config_type` in DescribeConfigs v3."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic config and its allowed values. low, high: inclusive limits of numbers. also: an
    additional allowed number. choices: allowed values of a boolean, a string or each list item;
    empty if all are allowed. item: regular expression for list items; the list may also be `*`.
    is_internal: whether the config is listed only if it is set, as in Kafka. chars_max: maximum
    length of the value. parse: returns the canonical form of a string, or raises ValueError with
    the allowed values, which `wanted` also describes.
    """

    name: str
    type: ConfigType
    default: str
    doc: str
    low: float = 0
    high: float = INT64_MAX
    also: int | None = None
    choices: tuple[str, ...] = ()
    item: str = ""
    is_internal: bool = False
    chars_max: int = VALUE_CHARS_MAX
    parse: Callable[[str], str] | None = None
    wanted: str = ""

    def problem(self, value: str) -> str:
        """Return the reason why the value is invalid, with the allowed values, or "" if it is
        valid.
        """
        if len(value) > self.chars_max:
            return f"config {self.name}: the value has more than {self.chars_max} characters"
        if self._parsed(value) is not None:
            return ""
        shown = value if len(value) <= SHOWN_CHARS_MAX else f"{value[:SHOWN_CHARS_MAX]}..."
        return f"config {self.name}={shown!r} is not valid: {self._reason(value)}"

    def canonical(self, value: str) -> str:
        """Return a valid value in Kafka's form: without spaces, booleans in lower case, lists
        without duplicates.
        """
        parsed = self._parsed(value)
        assert parsed is not None, "the value was checked"
        return parsed

    @property
    def allowed(self) -> str:
        match self.type:
            case ConfigType.BOOLEAN:
                return " or ".join(self.choices)
            case ConfigType.INT | ConfigType.LONG | ConfigType.DOUBLE:
                also = "" if self.also is None else f", or {self.also}"
                return f"a number from {self.low} to {self.high}{also}"
            case ConfigType.LIST if self.choices:
                return f"some of {', '.join(self.choices)}, separated by commas, or nothing"
            case ConfigType.LIST:
                return "*, or PARTITION:BROKER separated by commas, or nothing"
            case _ if self.parse is not None:
                return self.wanted
            case _:
                return f"one of {', '.join(self.choices)}" if self.choices else "any text"

    def _parsed(self, value: str) -> str | None:
        """Return the canonical form of the value, or None if it is invalid. Surrounding spaces are
        allowed, as in Kafka.
        """
        value = value.strip()
        match self.type:
            case ConfigType.BOOLEAN:
                return value.lower() if value.lower() in self.choices else None
            case ConfigType.INT | ConfigType.LONG | ConfigType.DOUBLE:
                number = _number(value, self.type)
                if number is None:
                    return None
                is_allowed = self.low <= number <= self.high or number == self.also
                return str(number) if is_allowed else None
            case ConfigType.LIST:
                items = [item.strip() for item in value.split(",")] if value else []
                is_allowed = (bool(self.item) and items == ["*"]) or all(map(self._has, items))
                return ",".join(dict.fromkeys(items)) if is_allowed else None
            case _ if self.parse is not None:
                try:
                    return self.parse(value)
                except ValueError:
                    return None
            case _:
                return value if not self.choices or value in self.choices else None

    def _reason(self, value: str) -> str:
        """Return the reason why a value is invalid, with the allowed values."""
        if self.parse is None:
            return self.allowed
        try:
            self.parse(value.strip())
        except ValueError as error:
            return str(error)
        return self.allowed

    def _has(self, item: str) -> bool:
        """Return whether this list item is allowed."""
        return item in self.choices or (
            bool(self.item) and re.fullmatch(self.item, item) is not None
        )


def _number(value: str, kind: ConfigType) -> float | int | None:
    """Return the number, or None if the value is not a number."""
    if kind != ConfigType.DOUBLE:
        return int(value) if _INTEGER.fullmatch(value) else None
    found = _DECIMAL.fullmatch(value)
    return float(found[1]) if found else None


def cleanup_policies(configs: Mapping[str, str]) -> frozenset[str]:
    """Return the values of `cleanup.policy`, a subset of "compact" and "delete"."""
    return frozenset(
        split_list(configs.get("cleanup.policy", TOPIC_CONFIGS["cleanup.policy"].default))
    )


def open_mirror(configs: Mapping[str, str]) -> str:
    """Return the source of a topic that only a mirror writes to, or "" for other topics."""
    return "" if configs.get(MIRROR_FINISHED) == "true" else configs.get(MIRROR_SOURCE, "")


def split_list(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _long(name: str, default: int, doc: str, *, low: int = 0, high: int = INT64_MAX) -> TopicConfig:
    return TopicConfig(name, ConfigType.LONG, str(default), doc, low, high)


def _int(name: str, default: int, doc: str, *, low: int = 0, high: int = INT32_MAX) -> TopicConfig:
    return TopicConfig(name, ConfigType.INT, str(default), doc, low, high)


def _bool(name: str, doc: str, *choices: str) -> TopicConfig:
    return TopicConfig(name, ConfigType.BOOLEAN, "false", doc, choices=choices or ("true", "false"))


def _string(name: str, default: str, doc: str, *choices: str) -> TopicConfig:
    return TopicConfig(name, ConfigType.STRING, default, doc, choices=choices)


def _throttled(name: str) -> TopicConfig:
    doc = f"{NO_EFFECT}no data is moved between brokers."
    return TopicConfig(name, ConfigType.LIST, "", doc, item=_THROTTLED)


FORK_SOURCE = "penstock.fork.source"
DELETE_GRACE = "penstock.delete.grace.ms"
MIRROR_SOURCE = "penstock.mirror.source"
MIRROR_FINISHED = "penstock.mirror.finished"
UNDELETE = "penstock.undelete"
"""Selects the deleted topic to restore in CreateTopics; not a topic config."""

NO_EFFECT = "No effect, accepted for Kafka tools: "
"""Prefix of the `doc` of configs without an effect."""


@dataclass(frozen=True, slots=True)
class SchemaConfigs:
    """The names of the configs that define the schema of record keys or record values."""

    schema: str
    type: str
    message: str
    is_registered: str
    strategy: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.schema, self.type, self.message, self.is_registered, self.strategy})


def _schema_names(part: str) -> SchemaConfigs:
    prefix = f"penstock.{part}"
    return SchemaConfigs(
        f"{prefix}.schema",
        f"{prefix}.schema.type",
        f"{prefix}.schema.message",
        f"{prefix}.schema.validation",
        f"{prefix}.subject.name.strategy",
    )


KEY_SCHEMA = _schema_names("key")
VALUE_SCHEMA = _schema_names("value")
SCHEMA_TYPES = ("json", "avro", "protobuf")
SUBJECT_STRATEGIES = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")


def _schema_configs(part: str, names: SchemaConfigs) -> tuple[TopicConfig, ...]:
    return (
        TopicConfig(
            names.schema,
            ConfigType.STRING,
            "",
            f"Schema of the {part} of each record: JSON Schema, an Avro schema, or Protobuf as the"
            " text of a .proto file or a descriptor set in Base64. Batches with other records are"
            " refused. Penstock's own.",
            is_internal=True,
            chars_max=SCHEMA_CHARS_MAX,
        ),
        TopicConfig(
            names.type,
            ConfigType.STRING,
            SCHEMA_TYPES[0],
            f"Language of `{names.schema}`. Penstock's own.",
            choices=SCHEMA_TYPES,
            is_internal=True,
        ),
        TopicConfig(
            names.message,
            ConfigType.STRING,
            "",
            f"Full name of the message of a Protobuf schema that the {part} is; empty for the first"
            " one of the file. Penstock's own.",
            is_internal=True,
        ),
        TopicConfig(
            names.is_registered,
            ConfigType.BOOLEAN,
            "false",
            f"Whether the {part} of each record has to begin with the id of a schema that is"
            " registered for this topic at `schema.registry.url`, and to match it. Penstock's own.",
            choices=("true", "false"),
            is_internal=True,
        ),
        TopicConfig(
            names.strategy,
            ConfigType.STRING,
            SUBJECT_STRATEGIES[0],
            f"Which subject a schema has to be registered under: TOPIC-{part}, the name of the"
            f" record, or TOPIC-NAME. Only with `{names.is_registered}`. Penstock's own.",
            choices=SUBJECT_STRATEGIES,
            is_internal=True,
        ),
    )


def _table_config(
    name: str,
    kind: ConfigType,
    default: str,
    doc: str,
    *,
    low: int = 0,
    high: float = INT64_MAX,
    also: int | None = None,
    choices: tuple[str, ...] = (),
    parse: Callable[[str], str] | None = None,
    wanted: str = "",
    chars_max: int = VALUE_CHARS_MAX,
) -> TopicConfig:
    return TopicConfig(
        name,
        kind,
        default,
        f"{doc} Penstock's own, for `penstock table run`.",
        low=low,
        high=high,
        also=also,
        choices=choices,
        is_internal=True,
        chars_max=chars_max,
        parse=parse,
        wanted=wanted,
    )


TABLE_CONFIGS = (
    _table_config(
        tables.ENABLE,
        ConfigType.BOOLEAN,
        "false",
        "Whether the topic is exported to a table.",
        choices=("true", "false"),
    ),
    _table_config(
        tables.NAME,
        ConfigType.STRING,
        "",
        "Name of the table. By default that of the topic, with underscores for dots and dashes.",
        parse=tables.canonical_name,
        wanted=tables.NAME_ALLOWED,
    ),
    _table_config(
        tables.FORMAT,
        ConfigType.STRING,
        tables.TABLE_FORMATS[0],
        "Format of the table: Iceberg, or a directory of Parquet files with a commit log.",
        choices=tables.TABLE_FORMATS,
    ),
    _table_config(
        tables.SCHEMA,
        ConfigType.STRING,
        tables.AUTO,
        "Schema whose fields become columns. raw: none, values are stored unchanged. registry: the"
        " newest one of the subject TOPIC-value or SUBJECT, and each value begins with the id of"
        f" its schema. auto: `{VALUE_SCHEMA.schema}`; without it, as registry if"
        f" `{VALUE_SCHEMA.is_registered}` is set, otherwise as raw.",
        parse=tables.canonical_schema,
        wanted=tables.SCHEMA_ALLOWED,
        chars_max=SCHEMA_CHARS_MAX,
    ),
    _table_config(
        tables.PARTITION_BY,
        ConfigType.STRING,
        "",
        "Partitioning of the table; an Iceberg table takes a new one with the next batch. By"
        " default that of the table, which is none if it is new.",
        parse=tables.canonical_partition_by,
        wanted=tables.PARTITION_BY_ALLOWED,
    ),
    _table_config(
        tables.MODE,
        ConfigType.STRING,
        tables.APPEND,
        "append: a row for each record. upsert: a row for the last record of each key.",
        choices=tables.MODES,
    ),
    _table_config(
        tables.COMMIT_INTERVAL,
        ConfigType.LONG,
        str(tables.COMMIT_INTERVAL_MS),
        "Time between two commits to the table.",
        low=tables.COMMIT_INTERVAL_MS_MIN,
        high=tables.COMMIT_INTERVAL_MS_MAX,
    ),
    _table_config(
        tables.COMPACT,
        ConfigType.BOOLEAN,
        "true",
        "Whether small files of the table are merged automatically.",
        choices=("true", "false"),
    ),
    _table_config(
        tables.SNAPSHOT_RETENTION,
        ConfigType.LONG,
        str(tables.SNAPSHOT_RETENTION_MS),
        "How long a snapshot of the table is kept after a newer one has replaced it, for time"
        f" travel and running queries; {tables.FOREVER}: forever.",
        low=tables.SNAPSHOT_RETENTION_MS_MIN,
        also=tables.FOREVER,
    ),
    _table_config(
        tables.ORPHAN_RETENTION,
        ConfigType.LONG,
        str(tables.ORPHAN_RETENTION_MS),
        "Age at which files that no snapshot of the table refers to are deleted:"
        f" those of expired snapshots and of killed processes; {tables.FOREVER}: never.",
        low=tables.ORPHAN_RETENTION_MS_MIN,
        also=tables.FOREVER,
    ),
    _table_config(
        tables.MASK,
        ConfigType.STRING,
        "",
        "Columns and nested fields that are masked, also in dead letters, as in"
        " `email=hash, card=last4`. Without the field, or without the key of hashes, the export"
        " stops.",
        parse=tables.canonical_mask,
        wanted=tables.MASK_ALLOWED,
    ),
    _table_config(
        tables.UNWRAP,
        ConfigType.STRING,
        tables.UNWRAPS[0],
        "debezium: values are Debezium's change events, whose rows are exported. Only with"
        f" `{tables.MODE}=upsert`.",
        choices=tables.UNWRAPS,
    ),
)

_ALL = (
    TopicConfig(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "delete: retention deletes old records. compact: the newest record of each key is kept,"
        " and records without a key are rejected. Both may be combined; with neither, all records"
        " are kept until DeleteRecords.",
        choices=("compact", "delete"),
    ),
    _string(
        "compression.type",
        "producer",
        "Codec of stored batches. Batches are stored as producers send them; only 'producer' has an"
        " effect.",
        "uncompressed",
        "zstd",
        "lz4",
        "snappy",
        "gzip",
        "producer",
    ),
    TopicConfig(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        f"{NO_EFFECT}batches are never compressed again.",
        low=1,
        high=9,
        also=-1,
    ),
    _int(
        "compression.lz4.level",
        9,
        f"{NO_EFFECT}batches are never compressed again.",
        low=1,
        high=17,
    ),
    _int(
        "compression.zstd.level",
        3,
        f"{NO_EFFECT}batches are never compressed again.",
        low=-131_072,
        high=22,
    ),
    _long(
        "delete.retention.ms",
        86_400_000,
        "How long log compaction keeps tombstones after the first pass over them.",
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        f"{NO_EFFECT}objects have one read grace for the whole cluster.",
    ),
    _long(
        "flush.messages",
        INT64_MAX,
        f"{NO_EFFECT}every acknowledged record is in the object store.",
        low=1,
    ),
    _long("flush.ms", INT64_MAX, f"{NO_EFFECT}every acknowledged record is in the object store."),
    _throttled("follower.replication.throttled.replicas"),
    _int("index.interval.bytes", 4_096, f"{NO_EFFECT}objects have one index entry per block."),
    TopicConfig(
        "internal.segment.bytes",
        ConfigType.INT,
        "1048576",
        f"{NO_EFFECT}there are no segments.",
        low=INT32_MIN,
        high=INT32_MAX,
        is_internal=True,
    ),
    _throttled("leader.replication.throttled.replicas"),
    _long("local.retention.bytes", -2, f"{NO_EFFECT}brokers keep no local data.", low=-2),
    _long("local.retention.ms", -2, f"{NO_EFFECT}brokers keep no local data.", low=-2),
    _long(
        "max.compaction.lag.ms",
        INT64_MAX,
        "How long records may wait for log compaction regardless of the dirty ratio, measured from"
        " when the leader first saw them.",
        low=1,
    ),
    _int(
        "max.message.bytes", 1_048_588, "Largest record batch accepted, as received (compressed)."
    ),
    _long(
        "message.timestamp.after.max.ms",
        _HOUR_MS,
        "How far a record's timestamp may be ahead of the broker's clock (CreateTime only).",
    ),
    _long(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        "How far a record's timestamp may be behind the broker's clock (CreateTime only).",
    ),
    _string(
        "message.timestamp.type",
        "CreateTime",
        "Source of timestamps: the producer's clock or the broker's.",
        "CreateTime",
        "LogAppendTime",
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "Share of bytes written since the last pass above which a log is compacted.",
        0,
        1,
    ),
    _long("min.compaction.lag.ms", 0, "Age below which records are not compacted."),
    _int(
        "min.insync.replicas",
        1,
        f"{NO_EFFECT}durability comes from the object store, not from replicas.",
        low=1,
    ),
    TopicConfig(
        FORK_SOURCE,
        ConfigType.STRING,
        "",
        "The topic that this one was forked from. Penstock's own, set only when a topic is created:"
        " the new topic begins with the log of that one.",
        is_internal=True,
    ),
    TopicConfig(
        DELETE_GRACE,
        ConfigType.LONG,
        "-1",
        "How long the topic, once deleted, or records that DeleteRecords deleted from it, can come"
        " back (`penstock topics undelete`); 0: they cannot; -1: as long as the setting"
        " `delete.grace.ms` says. Penstock's own.",
        low=-1,
        is_internal=True,
    ),
    *_schema_configs("key", KEY_SCHEMA),
    *_schema_configs("value", VALUE_SCHEMA),
    TopicConfig(
        MIRROR_SOURCE,
        ConfigType.STRING,
        "",
        "The cluster and the topic that this one is a mirror of, as CLUSTER_ID/TOPIC_ID. Penstock's"
        " own, set by `penstock mirror`: only a mirror of this source writes to the topic, with the"
        " offsets of the source.",
        is_internal=True,
    ),
    TopicConfig(
        MIRROR_FINISHED,
        ConfigType.BOOLEAN,
        "false",
        "Whether the mirror has ended, so that producers write to the topic. Penstock's own, set by"
        " `penstock mirror finish`.",
        choices=("true", "false"),
        is_internal=True,
    ),
    *TABLE_CONFIGS,
    _bool("preallocate", f"{NO_EFFECT}there are no files."),
    TopicConfig(
        RECORD_VALIDATION,
        ConfigType.STRING,
        VALIDATES_ALL,
        "Which batches of producers have their records checked as Kafka checks them. full: all."
        " sampled: one in 16, and all of a client after a bad one. header: none; only headers and"
        " checksums. Compacted topics and topics with a limit on timestamps always check all."
        " Penstock's own.",
        choices=(VALIDATES_ALL, VALIDATES_SAMPLES, VALIDATES_HEADERS),
        is_internal=True,
    ),
    _bool("remote.log.copy.disable", f"{NO_EFFECT}all data is remote."),
    _bool("remote.log.delete.on.disable", f"{NO_EFFECT}all data is remote."),
    _bool(
        "remote.storage.enable",
        "Kafka's tiered storage, which does not exist here: all data is in the object store.",
        "false",
    ),
    _long(
        "retention.bytes",
        -1,
        "Size of a partition, in bytes of its objects, above which its oldest objects' records are"
        " deleted; a negative number for no limit.",
        low=INT64_MIN,
    ),
    _long(
        "retention.ms",
        604_800_000,
        "Age at which records are deleted, by their timestamps; -1 for never.",
        low=-1,
    ),
    _int(
        "segment.bytes",
        1_073_741_824,
        f"{NO_EFFECT}retention deletes whole ranges, and uploads and compaction set their size.",
        low=1_048_576,
    ),
    _int("segment.index.bytes", 10_485_760, f"{NO_EFFECT}there are no index files.", low=4),
    _long("segment.jitter.ms", 0, f"{NO_EFFECT}there are no segments."),
    _long(
        "segment.ms",
        604_800_000,
        f"{NO_EFFECT}a range is committed within upload.block.max.age.ms.",
        low=1,
    ),
    _bool(
        "unclean.leader.election.enable", f"{NO_EFFECT}a new leader has every acknowledged record."
    ),
)

TOPIC_CONFIGS: Mapping[str, TopicConfig] = {config.name: config for config in _ALL}

BROKER_SYNONYMS: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Kafka's broker configs that are the defaults of topic configs."""
BROKER_SYNONYMS_WITHOUT_DEFAULT = frozenset(
    {"flush.ms", "retention.ms", "segment.jitter.ms", "segment.ms"}
)
"""Topic configs whose broker defaults have a different unit in Kafka and are not listed as
synonyms.
"""
CONFIG_DEFAULTS = {config.name: config.default for config in _ALL}


def is_own(name: str) -> bool:
    """Return whether a config is specific to Penstock."""
    return name.startswith("penstock.")


def problem(name: str, value: str) -> str:
    """Return the reason why a topic cannot have this config, or "" if it can. The error for an
    unknown name suggests the most similar known name.
    """
    config = TOPIC_CONFIGS.get(name)
    if config is not None:
        return config.problem(value)
    near = difflib.get_close_matches(name[:100], TOPIC_CONFIGS, n=1)
    hint = f"did you mean {near[0]}?" if near else "DescribeConfigs of a topic lists all there are"
    return f"there is no topic config {name[:100]!r}: {hint}"


def canonical(name: str, value: str) -> str:
    """Return a valid value in Kafka's form."""
    return TOPIC_CONFIGS[name].canonical(value)


def conflict(configs: Mapping[str, str]) -> str:
    """Return the reason why these configs of one topic are incompatible, or "" if they are
    compatible. Configs that are not set have their default values. As in Kafka, the minimum
    compaction lag must not exceed the maximum. A schema is either contained in the config or
    registered, not both.
    """
    low, high = (
        int(configs.get(name, TOPIC_CONFIGS[name].default))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if low > high:
        return f"min.compaction.lag.ms ({low}) is larger than max.compaction.lag.ms ({high})"
    return _schema_conflict(configs, KEY_SCHEMA) or _schema_conflict(configs, VALUE_SCHEMA)


def _schema_conflict(configs: Mapping[str, str], names: SchemaConfigs) -> str:
    schema = configs.get(names.schema)
    if schema and configs.get(names.is_registered) == "true":
        return f"{names.schema} and {names.is_registered}=true exclude each other: remove one"
    if configs.get(names.message) and (not schema or configs.get(names.type) != "protobuf"):
        return f"{names.message} needs {names.schema} and {names.type}=protobuf"
    return ""
