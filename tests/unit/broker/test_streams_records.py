"""Records of streams groups are byte-identical to those of Kafka 4.2."""

import pytest

from penstock.broker.groups.common.records import (
    ConsumerRecordKey,
    ConsumerRecordKind,
    ConsumerValue,
    MalformedGroupRecord,
    decode_consumer_key,
    encode_consumer_key,
)
from penstock.broker.groups.coordinator.records import decode_consumer_value, encode_consumer_value
from penstock.broker.groups.streams.values import (
    CopartitionGroup,
    HeldTasks,
    InternalTopic,
    StreamsAssignment,
    StreamsEpoch,
    StreamsMemberState,
    StreamsMetadata,
    Subtopology,
    Tasks,
    Topology,
)

_MEMBER = (
    "0000 00 037231 0970656e73746f636b 0b2f3132372e302e302e31 0000ea60 00000000"
    " 0a70726f636573732d61 ff 02 057a6f6e65 037a31 00 00"
)
_TOPOLOGY = "0000 00000000 02 0230 02 0973742d7061676573 01 01 01 01 01 00 00"
_GROUP = (
    "0000 00000002 5fad2ab89a960ee7 02 00 04 00000000"
    " 01 19 02 156e756d2e7374616e6462792e7265706c69636173 0230 00"
)
_TARGET = "0000 02 0230 05 00000000 00000001 00000002 00000003 00 01 01 00"
_UNREVOKED = (
    "0000 00000003 00000003 02"
    " 02 0230 03 00000000 00000001 01 00 09 03 00000002 00000002 01 01"
    " 02 0230 03 00000002 00000003 01 00 09 03 00000002 00000002 01 01 00"
)
KAFKA: list[tuple[ConsumerRecordKind, str, str, ConsumerValue, str]] = [
    (
        ConsumerRecordKind.STREAMS_MEMBER,
        "a",
        "0013 000a 73742d6d656d62657273 0001 61",
        StreamsMetadata(
            "r1",
            "penstock",
            "/127.0.0.1",
            60_000,
            0,
            "process-a",
            None,
            (("zone", "z1"),),
        ),
        _MEMBER,
    ),
    (
        ConsumerRecordKind.STREAMS_TOPOLOGY,
        "",
        "0017 000a 73742d6d656d62657273",
        Topology(0, (Subtopology("0", ("st-pages",)),)),
        _TOPOLOGY,
    ),
    (
        ConsumerRecordKind.STREAMS_GROUP,
        "",
        "0011 000a 73742d6d656d62657273",
        StreamsEpoch(2, 0x5FAD2AB89A960EE7, 0, (("num.standby.replicas", "0"),)),
        _GROUP,
    ),
    (
        ConsumerRecordKind.STREAMS_TARGET,
        "a",
        "0015 000a 73742d6d656d62657273 0001 61",
        Tasks({"0": frozenset(range(4))}),
        _TARGET,
    ),
    (
        ConsumerRecordKind.STREAMS_TARGET_EPOCH,
        "",
        "0014 000a 73742d6d656d62657273",
        2,
        "0000 00000002 00",
    ),
    (
        ConsumerRecordKind.STREAMS_CURRENT,
        "a",
        "0016 000a 73742d6d656d62657273 0001 61",
        StreamsAssignment(
            3,
            3,
            StreamsMemberState.UNREVOKED_TASKS,
            HeldTasks({"0": {0: 2, 1: 2}}),
            HeldTasks({"0": {2: 2, 3: 2}}),
        ),
        _UNREVOKED,
    ),
]
"""Recorded from `__consumer_offsets` of Apache Kafka 4.2."""


@pytest.mark.parametrize(("kind", "name", "key", "value", "data"), KAFKA, ids=lambda item: "")
def test_records_match_kafka(
    kind: ConsumerRecordKind, name: str, key: str, value: ConsumerValue, data: str
) -> None:
    decoded = ConsumerRecordKey(kind, "st-members", name)
    assert encode_consumer_key(decoded).hex() == key.replace(" ", "")
    assert decode_consumer_key(bytes.fromhex(key)) == decoded
    assert encode_consumer_value(kind, value).hex() == data.replace(" ", "")
    assert decode_consumer_value(kind, bytes.fromhex(data)) == value


FULL: list[tuple[ConsumerRecordKind, ConsumerValue]] = [
    (ConsumerRecordKind.STREAMS_GROUP, StreamsEpoch(3, -1, -1, ())),
    (
        ConsumerRecordKind.STREAMS_MEMBER,
        StreamsMetadata(None, "c", "/h", 1, 2, "p", ("host", 65_535), (("a", "1"), ("b", ""))),
    ),
    (
        ConsumerRecordKind.STREAMS_CURRENT,
        StreamsAssignment(
            7,
            6,
            StreamsMemberState.UNRELEASED_TASKS,
            HeldTasks({"0": {1: 5}, "1": {0: 7}}, {"0": frozenset({2})}),
            HeldTasks({}, {"1": frozenset({3})}),
        ),
    ),
    (
        ConsumerRecordKind.STREAMS_TOPOLOGY,
        Topology(
            4,
            (
                Subtopology(
                    "a",
                    ("s", "t"),
                    (),
                    (InternalTopic("changes", 0, 2, (("cleanup.policy", "compact"),)),),
                    ("sink",),
                    (InternalTopic("again", 3),),
                    (CopartitionGroup((0, 1), (), (0,)),),
                ),
            ),
        ),
    ),
]


@pytest.mark.parametrize(("kind", "value"), FULL)
def test_values_survive_a_round_trip(kind: ConsumerRecordKind, value: ConsumerValue) -> None:
    assert decode_consumer_value(kind, encode_consumer_value(kind, value)) == value


def test_an_unvalidated_topology_has_no_tagged_field() -> None:
    data = encode_consumer_value(ConsumerRecordKind.STREAMS_GROUP, StreamsEpoch(3, 1, -1, ()))
    assert data.hex() == "0000 00000003 0000000000000001 01 01 01 01".replace(" ", "")


def test_tasks_without_epochs_have_the_epoch_of_the_member() -> None:
    """Kafka 4.1 did not write task epochs."""
    data = "0000 00000003 00000002 01 02 0230 02 00000001 00 01 01 01 01 01 00"
    value = decode_consumer_value(ConsumerRecordKind.STREAMS_CURRENT, bytes.fromhex(data))
    assert value == StreamsAssignment(
        3, 2, StreamsMemberState.STABLE, HeldTasks({"0": {1: 3}}), HeldTasks()
    )


def test_an_unknown_member_state_is_decoded_as_unknown() -> None:
    data = bytes.fromhex("0000 00000003 00000002 07 01 01 01 01 01 01 00")
    value = decode_consumer_value(ConsumerRecordKind.STREAMS_CURRENT, data)
    assert isinstance(value, StreamsAssignment)
    assert value.state is StreamsMemberState.UNKNOWN


def test_fewer_epochs_than_tasks_are_malformed() -> None:
    data = "0000 00000003 00000002 01 02 0230 03 00000001 00000002 01 00 05 02 00000003"
    data += " 01 01 01 01 01 00"
    with pytest.raises(MalformedGroupRecord):
        decode_consumer_value(ConsumerRecordKind.STREAMS_CURRENT, bytes.fromhex(data))
