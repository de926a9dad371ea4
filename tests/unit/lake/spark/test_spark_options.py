"""Options of `format("kafka")`: rejected values with their messages, and parsed values."""

from typing import Any

import pytest

from penstock.lake.spark.errors import InvalidOption, OffsetsMismatch
from penstock.lake.spark.offsets import TopicPartition
from penstock.lake.spark.options import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    Topics,
    check_common,
    parse,
    warnings,
)

WHICH = (
    " of the following options must be specified for Kafka source: subscribe, subscribepattern,"
    " assign. See the docs for more details."
)
DESERIALIZER = (
    "Kafka option '{0}.deserializer' is not supported as {0}s are deserialized as byte arrays with"
    " ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the {0}s."
)
TIMESTAMPS = (
    'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789},\n"topicB": {"0": 123456789, "1":'
    " 123456789}}, got []"
)
BASE = {"store": "s3://bucket", "subscribe": "a"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.mark.parametrize(("options", "text"), [
    ({"store": "s3://b"}, "One" + WHICH),
    (BASE | {"assign": "{}"}, "Only one" + WHICH.replace("must", "can")),
    ({"assign": "a"}, "There are no partitions to assign: option 'assign' has the value 'a'"),
    ({"assign": '{"a":0}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {"a":0}'),
    ({"subscribe": " , "},
     "There are no topics to subscribe to: option 'subscribe' has the value ' , '"),
    ({"subscribePattern": " "},
     "The pattern to subscribe to is empty: option 'subscribePattern' has the value ' '"),
    ({"subscribePattern": "("},
     (
         "subscribePattern '(' is not a Python regular expression: missing ), unterminated "
         "subpattern at position 0"
     )),
    (BASE | {"minPartitions": "0"}, "minPartitions must be positive"),
    (BASE | {"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
    (BASE | {"minPartitions": "many"}, 'minPartitions must be a number. For input string: "many"'),
    (BASE | {"kafka.key.deserializer": "x"}, DESERIALIZER.format("key")),
    (BASE | {"kafka.value.deserializer": "x"}, DESERIALIZER.format("value")),
    (BASE | {"kafka.enable.auto.commit": "x"},
     "Kafka option 'enable.auto.commit' is not supported"),
    (BASE | {"kafka.interceptor.classes": "x"},
     "Kafka option 'interceptor.classes' is not supported"),
    (BASE | {"kafka.isolation.level": "x"},
     "kafka.isolation.level must be read_uncommitted or read_committed, got 'x'"),
    (BASE | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
     "The value of minOffsetPerTrigger(9) is higher than the maxOffsetsPerTrigger(8)."),
    ({"subscribe": "a"},
     "Option 'store' must be specified: the store of the cluster, as in s3://bucket/prefix"),
    (BASE | {"queryId": "a/b"},
     "queryId must be 1 to 128 characters from A-Z, a-z, 0-9, '.', '_' and '-', got 'a/b'"),
    (BASE | {"readLeaseTtl": "8d"}, "readLeaseTtl must be at most 7d"),
])  # fmt: skip
def test_options_that_are_invalid_for_batch_and_stream(options: dict[str, str], text: str) -> None:
    given = {"store": "s3://bucket"} | options if "subscribe" not in options else options
    with pytest.raises(InvalidOption) as error:
        check_common(given)
    assert str(error.value) == text
    for streaming in (False, True):
        with pytest.raises(InvalidOption):
            parse(given | {"startingOffsets": "earliest"}, streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_wal_store_can_be_set_by_an_option(streaming: bool) -> None:
    base = {**BASE, "startingOffsets": "earliest"}
    given = {**base, "Wal_Store": " s3://wals "}
    assert parse(given, streaming=streaming).wal_store == "s3://wals"
    assert not parse(base, streaming=streaming).wal_store


@pytest.mark.parametrize("streaming", [False, True])
def test_reading_only_uploaded_data_can_be_set_by_an_option(streaming: bool) -> None:
    base = {**BASE, "startingOffsets": "earliest"}
    assert parse(base, streaming=streaming).tail == "all"
    assert parse({**base, "Tail": " uploaded "}, streaming=streaming).tail == "uploaded"
    for given, why in (
        ({"tail": "newest"}, "must be one of all, uploaded"),
        ({"tail": "uploaded", "wal_store": "s3://wals"}, "omit wal_store"),
    ):
        with pytest.raises(InvalidOption, match=why):
            parse({**base, **given}, streaming=streaming)


def test_the_error_of_offset_reset_names_the_right_option() -> None:
    with pytest.raises(
        InvalidOption,
        match=(
            r"^Kafka option 'auto\.offset\.reset' is not supported\. Instead set the source option"
        ),
    ):
        check_common(BASE | {"kafka.auto.offset.reset": "earliest"})


@pytest.mark.parametrize(("options", "text"), [
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
    ({"startingOffsets": '{"a":{"0":-1}}'},
     "startingOffsets for a-0 can't be latest for batch queries on Kafka"),
    ({"endingOffsets": "Earliest "}, "ending offset can't be earliest for batch queries on Kafka"),
    ({"endingOffsets": '{"a":{"0":-2}}'},
     "ending offset for a-0 can't be earliest for batch queries on Kafka"),
    ({"startingOffsets": '{"a":{"0":true}}'},
     'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {"a":{"0":true}}'),
    ({"startingOffsets": '{"a":{"0":-3}}'},
     'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {"a":{"0":-3}}'),
    ({"startingOffsets": "soon"},
     'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got soon'),
    ({"startingTimestamp": "now"}, "Expected a single long value, got now"),
    ({"endingOffsetsByTimestamp": "[]"}, TIMESTAMPS),
    ({"failOnDataLoss": "maybe"},
     'failOnDataLoss must be true or false. For input string: "maybe"'),
    ({"startingOffsetsByTimestampStrategy": "guess"},
     "startingOffsetsByTimestampStrategy must be error or latest, got 'guess'"),
])  # fmt: skip
def test_a_batch_read_rejects_invalid_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption) as error:
        parse(BASE | options, streaming=False)
    assert str(error.value) == text


def test_start_and_end_offsets_of_a_batch_must_match() -> None:
    with pytest.raises(OffsetsMismatch) as error:
        parse(
            BASE
            | {
                "startingOffsets": '{"a":{"0":3,"1":-2}}',
                "endingOffsets": '{"a":{"0":2,"1":-1}}',
            },
            streaming=False,
        )
    assert (
        str(error.value)
        == "The specified start offset 3 is greater than the end offset 2 for topic a partition 0."
    )
    with pytest.raises(OffsetsMismatch) as error:
        parse(
            BASE | {"startingOffsets": '{"a":{"0":3}}', "endingOffsets": '{"a":{"1":2}}'},
            streaming=False,
        )
    assert (
        str(error.value)
        == "The specified start offset and end offset should have the same topic-partitions."
        " Topic-partitions for start offset: Set(a-0), topic-partitions for end offset:"
        " Set(a-1)."
    )


@pytest.mark.parametrize(("options", "text"), [
    ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
    ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
    ({"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
])  # fmt: skip
def test_a_stream_rejects_ending_offsets(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption) as error:
        parse(BASE | {"startingOffsets": "earliest"} | options, streaming=True)
    assert str(error.value) == text


VOLATILE = [
    {},
    {"startingOffsets": "latest"},
    {"startingTimestamp": "5"},
    {"startingOffsetsByTimestamp": '{"a":{"0":5}}'},
    {"startingOffsets": '{"a":{"0":-1}}'},
]


@pytest.mark.parametrize("start", VOLATILE)
def test_a_stream_with_a_volatile_start_must_store_it(start: dict[str, str]) -> None:
    with pytest.raises(
        InvalidOption, match=r"'queryId'.*'initialOffsetsLocation'.*'allowVolatileStart'"
    ):
        parse(BASE | start, streaming=True)
    for way in (
        {"queryId": "q"},
        {"initialOffsetsLocation": "file:/tmp/x"},
        {"allowVolatileStart": "true"},
    ):
        parse(BASE | start | way, streaming=True)


def test_a_global_timestamp_overrides_timestamps_which_override_offsets() -> None:
    given = BASE | {"startingOffsets": '{"a":{"0":1}}'}
    assert parse(given, streaming=False).starting == AtOffsets({A0: 1})
    given |= {"startingOffsetsByTimestamp": '{"a":{"0":2,"1":3}}'}
    assert parse(given, streaming=False).starting == AtTimestamps({A0: 2, A1: 3})
    given |= {"startingTimestamp": " 4 "}
    assert parse(given, streaming=False).starting == AtTimestamp(4)
    assert parse(BASE, streaming=False).starting == Earliest()
    assert parse(BASE, streaming=False).ending == Latest()
    assert parse(BASE | {"allowVolatileStart": "true"}, streaming=True).starting == Latest()


DEFAULTS: dict[str, Any] = {
    "fail_on_data_loss": True,
    "include_headers": False,
    "read_committed": False,
    "latest_if_no_match": False,
    "min_partitions": 1,
    "max_records_per_partition": None,
    "max_offsets_per_trigger": None,
    "min_offsets_per_trigger": None,
    "max_trigger_delay_ms": 900_000,
    "max_bytes_per_task": 128 << 20,
    "read_lease_ttl_ms": 3_600_000,
    "retries": 3,
    "retry_interval_ms": 1_000,
}


def test_option_names_ignore_case_and_have_defaults() -> None:
    plain = parse({"STORE": "s3://bucket", "SubScribe": " a , b,a"}, streaming=False)
    assert plain.topics == Topics(names=("a", "b"))
    assert {name: getattr(plain, name) for name in DEFAULTS} == DEFAULTS
    given = {
        "assign": '{"a":[1,0]}',
        "store": "s3://b",
        "includeHeaders": "TRUE",
        "failondataloss": "False",
        "minPartitions": "7",
        "maxRecordsPerPartition": "8",
        "maxOffsetsPerTrigger": "9",
        "minOffsetsPerTrigger": "3",
        "maxTriggerDelay": "2h",
        "kafka.isolation.level": "READ_COMMITTED",
        "startingOffsetsByTimestampStrategy": "LATEST",
        "columns": "offset, key",
    }
    full = parse(given, streaming=False)
    assert full.topics == Topics(partitions=(A0, A1))
    assert (
        full.include_headers,
        full.fail_on_data_loss,
        full.read_committed,
        full.latest_if_no_match,
    ) == (True, False, True, True)
    assert (
        full.min_partitions,
        full.max_records_per_partition,
        full.max_offsets_per_trigger,
        full.min_offsets_per_trigger,
    ) == (7, 8, 9, 3)
    assert (full.max_trigger_delay_ms, full.columns) == (7_200_000, ("offset", "key"))


def test_settings_without_effect_are_reported_once() -> None:
    given = BASE | {
        "kafka.bootstrap.servers": "x:1",
        "kafka.sasl.mechanism": "PLAIN",
        "groupIdPrefix": "g",
        "maxOffsetPerTrigger": "1",
    }
    assert warnings(given, streaming=True) == [
        (
            "options for brokers and consumers have no effect, the store is read directly: "
            "kafka.bootstrap.servers, kafka.sasl.mechanism, groupidprefix"
        ),
        "unknown option maxoffsetpertrigger: did you mean maxoffsetspertrigger?",
    ]
    assert warnings(BASE | {"maxOffsetsPerTrigger": "1"}, streaming=False) == [
        "maxOffsetsPerTrigger option ignored in batch queries"
    ]
    assert warnings(BASE | {"kafka.isolation.level": "read_committed"}, streaming=False) == []


def test_a_snapshot_option_maps_topics_and_offsets_to_its_own_topics() -> None:
    in_it = TopicPartition("a@s", 0)
    given = BASE | {"snapshot": "s", "startingOffsets": '{"a":{"0":3}}'}
    named = parse(given, streaming=False)
    assert named.topics == Topics(names=("a@s",), snapshot="s")
    assert named.starting == AtOffsets({in_it: 3})
    assigned = parse({"store": "s3://b", "assign": '{"a":[0]}', "snapshot": "s"}, streaming=False)
    assert assigned.topics == Topics(partitions=(in_it,), snapshot="s")
    at_times = BASE | {"snapshot": "s", "startingOffsetsByTimestamp": '{"a":{"0":5}}'}
    assert parse(at_times, streaming=False).starting == AtTimestamps({in_it: 5})
    by_pattern = {"store": "s3://b", "subscribePattern": "a.*", "snapshot": "s"}
    assert parse(by_pattern, streaming=False).topics == Topics(pattern="a.*", snapshot="s")
    assert not warnings(given, streaming=False)
    with pytest.raises(InvalidOption, match="'snapshot' is for batch queries"):
        parse(BASE | {"snapshot": "s"}, streaming=True)
