"""Values of topic configs: which ones Kafka 4.2 accepts and rejects, and how it shows them."""

import pytest

from penstock.controller.metadata import topic_configs

MAX = (1 << 63) - 1

ACCEPTED = [
    ("retention.ms", "-1", "-1"),
    ("retention.ms", " 5 ", "5"),
    ("retention.ms", "+5", "5"),
    ("retention.ms", str(MAX), str(MAX)),
    ("retention.bytes", "-2", "-2"),
    ("retention.bytes", str(-MAX - 1), str(-MAX - 1)),
    ("retention.bytes", "0", "0"),
    ("cleanup.policy", "", ""),
    ("cleanup.policy", " ", ""),
    ("cleanup.policy", "delete,compact", "delete,compact"),
    ("cleanup.policy", "compact,compact", "compact"),
    ("cleanup.policy", " compact , delete ", "compact,delete"),
    ("internal.segment.bytes", "1000", "1000"),
    ("internal.segment.bytes", "-1", "-1"),
    ("remote.storage.enable", "false", "false"),
    ("remote.log.copy.disable", "true", "true"),
    ("remote.log.delete.on.disable", "true", "true"),
    ("local.retention.ms", "-2", "-2"),
    ("local.retention.bytes", "9999999999999", "9999999999999"),
    ("segment.bytes", "1048576", "1048576"),
    ("segment.bytes", str((1 << 31) - 1), str((1 << 31) - 1)),
    ("segment.ms", "1", "1"),
    ("segment.jitter.ms", "999999999999", "999999999999"),
    ("segment.index.bytes", "4", "4"),
    ("min.compaction.lag.ms", "0", "0"),
    ("min.compaction.lag.ms", str(MAX), str(MAX)),
    ("max.compaction.lag.ms", "1", "1"),
    ("min.cleanable.dirty.ratio", "0", "0.0"),
    ("min.cleanable.dirty.ratio", "1e-3", "0.001"),
    ("min.cleanable.dirty.ratio", ".5", "0.5"),
    ("min.cleanable.dirty.ratio", "0.5f", "0.5"),
    ("delete.retention.ms", "0", "0"),
    ("max.message.bytes", "0", "0"),
    ("message.timestamp.type", " CreateTime ", "CreateTime"),
    ("preallocate", "TRUE", "true"),
    ("preallocate", " true ", "true"),
    ("compression.gzip.level", "-1", "-1"),
    ("compression.gzip.level", "9", "9"),
    ("leader.replication.throttled.replicas", "*", "*"),
    ("leader.replication.throttled.replicas", "0:1", "0:1"),
    ("leader.replication.throttled.replicas", "", ""),
]
"""Config, value that Kafka 4.2 accepts, and what DescribeConfigs returns then."""

REFUSED = [
    *(("retention.ms", value) for value in ("-2", "abc", "", "1.5", "1_000", str(MAX + 1))),
    *(("retention.bytes", value) for value in ("x", str(MAX + 1))),
    *(("cleanup.policy", value) for value in ("shrink", "Delete", "none", "compact;delete")),
    *(("cleanup.policy", value) for value in (",delete", "delete,", "delete,,compact", ",")),
    ("internal.segment.bytes", "x"),
    *(("remote.storage.enable", value) for value in ("true", "x")),
    ("local.retention.ms", "-3"),
    ("local.retention.bytes", "-3"),
    *(("segment.bytes", value) for value in ("1048575", "1e7", str(1 << 31))),
    *(("segment.ms", value) for value in ("0", "-1")),
    ("segment.jitter.ms", "-1"),
    ("segment.index.bytes", "3"),
    ("min.compaction.lag.ms", "-1"),
    ("max.compaction.lag.ms", "0"),
    *(("min.cleanable.dirty.ratio", value) for value in ("1.1", "-0.1", "x", "", ".")),
    ("delete.retention.ms", "-1"),
    ("file.delete.delay.ms", "-1"),
    ("flush.messages", "0"),
    ("flush.ms", "-1"),
    ("index.interval.bytes", "-1"),
    *(("max.message.bytes", value) for value in ("-1", str(1 << 31))),
    *(("message.timestamp.type", value) for value in ("foo", "createtime")),
    ("message.timestamp.after.max.ms", "-1"),
    ("message.timestamp.before.max.ms", "-1"),
    ("min.insync.replicas", "0"),
    *(("preallocate", value) for value in ("yes", "")),
    *(("compression.type", value) for value in ("LZ5", "ZSTD", "none")),
    *(("compression.gzip.level", value) for value in ("0", "10")),
    ("compression.lz4.level", "0"),
    *(("compression.zstd.level", value) for value in ("23", "-131073")),
    ("leader.replication.throttled.replicas", "foo"),
    ("follower.replication.throttled.replicas", "none"),
    *((name, "1") for name in ("nope", "Retention.ms", "message.format.version")),
]
"""Config, and value that Kafka 4.2 rejects with INVALID_CONFIG."""


@pytest.mark.parametrize(("name", "value", "shown"), ACCEPTED)
def test_values_that_kafka_accepts_are_accepted(name: str, value: str, shown: str) -> None:
    assert topic_configs.problem(name, value) == ""
    assert topic_configs.canonical(name, value) == shown
    assert topic_configs.canonical(name, shown) == shown


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_values_that_kafka_rejects_are_rejected(name: str, value: str) -> None:
    assert name in topic_configs.problem(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.cleanable.dirty.ratio", "NaN"),
        ("follower.replication.throttled.replicas", "1:1," * 1_100),
    ],
)
def test_some_values_that_kafka_accepts_are_rejected(name: str, value: str) -> None:
    """With the ratio NaN, a log is never compacted. The length of values is limited."""
    assert name in topic_configs.problem(name, value)


OWN_ACCEPTED = [
    ("penstock.table.enable", "TRUE", "true"),
    ("penstock.table.format", "parquet", "parquet"),
    ("penstock.table.mode", " upsert ", "upsert"),
    ("penstock.table.commit.interval.ms", "1000", "1000"),
    ("penstock.table.name", "sales.orders_2", "sales.orders_2"),
    ("penstock.table.unwrap", "debezium", "debezium"),
    ("penstock.table.mask", " a.b = hash,a b=null ", "a.b=hash, a b=null"),
    ("penstock.table.mask", "a=b=last4, a-b=null, ab=null", "a=b=last4, a-b=null, ab=null"),
    *(
        ("penstock.table.mask", value, None)
        for value in ("a", "a=", "=hash", "a=sha256", "a=hash,", "a=hash,a=null", "a.b=null,a=null")
    ),
    ("penstock.table.partition.by", "", ""),
    ("penstock.table.partition.by", " day( ts ) , bucket( 16,id)", "day(ts), bucket(16, id)"),
    ("penstock.table.partition.by", "Hour(a.b),identity(é-x)", "hour(a.b), é-x"),
    ("penstock.table.partition.by", "day", "day(_timestamp)"),
    ("penstock.table.schema", "registry:orders v", None),
    ("penstock.table.schema", "registry:orders-value", "registry:orders-value"),
    ("penstock.table.schema", ' {"type": "object"} ', '{"type": "object"}'),
    *(("penstock.table.schema", value, value) for value in ("auto", "raw", "registry")),
    *(
        ("penstock.table.schema", value, None)
        for value in ("", "yes", "registry:", "[]", '"x"', "{", "[" * 30_000, "1", "Auto")
    ),
    *(
        ("penstock.table.partition.by", value, None)
        for value in (
            *("day()", "day(a", "day(a))", "day(a,b)", "week(a)", "day(a),", ",day(a)"),
            *("day(a) day(b)", "bucket(a)", "bucket(0,a)", "bucket(-1,a)", "bucket(16,)"),
            *("day(day(a))", "(" * 4_096),
        )
    ),
    *(("penstock.table.name", value, None) for value in ("a-b", "a.b.c", ".a", "a.", "a/b", "..")),
    *(("penstock.table.enable", value, None) for value in ("yes", "1", "")),
    *(("penstock.table.format", value, None) for value in ("delta", "Iceberg", "")),
    *(("penstock.table.mode", value, None) for value in ("merge", "")),
    *(("penstock.table.commit.interval.ms", value, None) for value in ("999", "1min", "86400001")),
    *(("penstock.table.compact", value, None) for value in ("on", "")),
    *(
        (f"penstock.table.{name}.retention.ms", value, shown)
        for name, value, shown in (
            ("snapshot", "3600000", "3600000"),
            ("snapshot", "3599999", None),
            ("orphan", "172800000", "172800000"),
            ("orphan", "172799999", None),
            *((name, "-1", "-1") for name in ("snapshot", "orphan")),
            *((name, value, None) for name in ("snapshot", "orphan") for value in ("0", "-2")),
        )
    ),
]
"""Config, value, and what DescribeConfigs returns, or None if the value is rejected."""


@pytest.mark.parametrize(("name", "value", "shown"), OWN_ACCEPTED)
def test_values_of_penstock_configs(name: str, value: str, shown: str | None) -> None:
    problem = topic_configs.problem(name, value)
    if shown is None:
        assert name in problem
        assert repr(value)[1:60].rstrip("'") in problem
        assert topic_configs.TOPIC_CONFIGS[name].allowed.partition(";")[0] in problem
        return
    assert problem == ""
    assert topic_configs.canonical(name, value) == shown
    assert topic_configs.canonical(name, shown) == shown


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("a,A", "twice"),
        ("day(a),hour(a)", "one transform of time"),
        (",".join(f"c{n}" for n in range(11)), "more than 10"),
    ],
)
def test_conflicting_partition_fields_are_rejected(value: str, reason: str) -> None:
    assert reason in topic_configs.problem("penstock.table.partition.by", value)


def test_every_default_is_valid_and_in_canonical_form() -> None:
    for config in topic_configs.TOPIC_CONFIGS.values():
        assert topic_configs.problem(config.name, config.default) == ""
        assert topic_configs.canonical(config.name, config.default) == config.default
        assert config.doc
