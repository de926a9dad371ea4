"""Reassignment files and traces, without a cluster."""

from typing import Any
from uuid import UUID

import pytest

from penstock.base.errors import ExpectedError
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamEpoch,
    StreamId,
)
from penstock.controller.api.messages import MoveTiming, MoveTrace
from penstock.controller.metadata.records import Move, PartitionRecord
from penstock.deploy.admin.reassign.admin import (
    PARTITIONS_PER_REQUEST_MAX,
    elect_preferred,
    reassign,
)
from penstock.deploy.admin.reassign.plan import (
    Key,
    parse_brokers,
    parse_partitions,
    parse_reassignment,
    parse_topics,
    propose,
    status_of,
    to_json,
)
from penstock.deploy.admin.reassign.trace import parse_partition, view_move
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.errors import UsageError
from penstock.protocol.gen import alter_partition_reassignments as alter
from penstock.protocol.gen import elect_leaders as elect

KAFKAS_OWN = (
    '{"version":1,"partitions":[{"topic":"tp_re_01","partition":4,"replicas":[0],"log_dirs":'
    ' ["any"]},{"topic":"tp_re_01","partition":1,"replicas":[1,0],"log_dirs":["any", "any"]}]}'
)


def test_a_file_of_kafkas_tool_survives_a_round_trip() -> None:
    assignment = parse_reassignment(KAFKAS_OWN)
    assert assignment == {Key("tp_re_01", 4): (0,), Key("tp_re_01", 1): (1, 0)}
    assert to_json(assignment) == (
        '{"version":1,"partitions":['
        '{"topic":"tp_re_01","partition":1,"replicas":[1,0],"log_dirs":["any","any"]},'
        '{"topic":"tp_re_01","partition":4,"replicas":[0],"log_dirs":["any"]}]}'
    )
    assert parse_reassignment(to_json(assignment)) == assignment


class Asked(WireClient):
    """Respond to every request without an error, and record the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def send_request(self, api: object, request: Any, kind: object) -> Any:
        self.requests.append(request)
        moves = isinstance(request, alter.AlterPartitionReassignmentsRequest)
        return (
            alter.AlterPartitionReassignmentsResponse() if moves else elect.ElectLeadersResponse()
        )


def test_ten_thousand_partitions_are_split_into_requests_of_limited_size() -> None:
    keys = [Key(f"t{index // 1_500}", index) for index in range(10_000)]
    client = Asked()
    assert reassign(client, dict.fromkeys(keys, (1, 2))) == {}
    requested = [
        [
            Key(topic.name, item.partition_index)
            for topic in request.topics
            for item in topic.partitions
        ]
        for request in client.requests
    ]
    assert [len(some) for some in requested] == [PARTITIONS_PER_REQUEST_MAX] * 10
    assert [key for some in requested for key in some] == keys
    client = Asked()
    assert elect_preferred(client, keys) == ([], {})
    counts = [
        sum(len(topic.partitions) for topic in request.topic_partitions)
        for request in client.requests
    ]
    assert counts == [PARTITIONS_PER_REQUEST_MAX] * 10
    client = Asked()
    elect_preferred(client, None)
    assert [request.topic_partitions for request in client.requests] == [None], (
        "the broker truncates the client's value"
    )


def test_topic_partition_and_broker_lists_are_parsed() -> None:
    assert parse_topics('{"topics": [{"topic": "a"}, {"topic": "b"}], "version": 1}') == ["a", "b"]
    assert parse_partitions('{"partitions": [{"topic": "a", "partition": 3}]}') == [Key("a", 3)]
    assert parse_brokers("2,0,1") == [2, 0, 1]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "example"),
        ('{"partitions": []}', "no partition"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": [{"topic": "a", "partition": "x", "replicas": []}]}', "example"),
        (
            (
                '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1]}, {"topic": "a",'
                ' "partition": 0, "replicas": [2]}]}'
            ),
            "a-0",
        ),
        (
            (
                '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs":'
                ' ["/disk"]}]}'
            ),
            "log director",
        ),
    ],
)
def test_invalid_files_are_rejected_with_a_reason(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_reassignment(text)


def test_invalid_broker_lists_and_partitions_are_rejected() -> None:
    for text in ("", "1,x", "1,1"):
        with pytest.raises(UsageError, match="broker-list"):
            parse_brokers(text)
    for text in ("orders", "-1", "orders-x"):
        with pytest.raises(ExpectedError, match="TOPIC-PARTITION"):
            parse_partition(text)
    assert parse_partition("my-topic-12") == Key("my-topic", 12)


def test_proposals_are_balanced_and_deterministic_and_keep_the_replication_factor() -> None:
    current = {Key("t", index): (7, 8) for index in range(12)}
    proposed = propose(current, [3, 1, 2])
    assert proposed == propose(current, [1, 2, 3])
    for nth in range(2):
        assert sorted(replicas[nth] for replicas in proposed.values()) == sorted([1, 2, 3] * 4)
    assert all(len(set(replicas)) == 2 for replicas in proposed.values())
    assert propose({Key("t", 0): (1, 2, 3)}, [5]) == {Key("t", 0): (5,)}


def test_states_of_reassignments() -> None:
    key = Key("t", 0)
    assert status_of(key, (1,), (1,), set()) == (
        True,
        "Reassignment of partition t-0 is completed.",
    )
    assert status_of(key, (1,), (2,), {key}) == (
        False,
        "Reassignment of partition t-0 is still in progress.",
    )
    assert (
        status_of(key, (1, 3), (2,), set())[1]
        == "There is no active reassignment of partition t-0, but replica set is 2 rather than 1,3."
    )
    assert not status_of(key, (1,), None, set())[0]


def record(move: Move | None) -> PartitionRecord:
    streams = StreamId(0), StreamId(1), StreamId(2)
    return PartitionRecord(
        UUID(int=1),
        0,
        (NodeId(2),),
        NodeId(2),
        NodeEpoch(1),
        StreamEpoch(5),
        *streams,
        target_replicas=None,
        move=move,
    )


def trace(node_id: int, epoch: int, *, gave_up: bool, **steps: float) -> MoveTrace:
    timing = MoveTiming(
        topic_id=UUID(int=1),
        partition=0,
        leader_epoch=StreamEpoch(epoch),
        gave_up=gave_up,
        steps=steps,
    )
    return MoveTrace(node_id=NodeId(node_id), received_ms=0, timing=timing)


def test_a_trace_contains_the_six_steps_of_the_last_move_only() -> None:
    move = Move(NodeId(1), NodeId(2), Millis(1_000), Millis(11_000), Millis(1_050), StreamEpoch(5))
    traces = [
        trace(2, 3, gave_up=True, persist=99, flush=99, commit=99),
        trace(1, 4, gave_up=True, persist=2, flush=30, commit=8),
        trace(2, 5, gave_up=False, open=4, restore=6),
    ]
    view = view_move(Key("t", 0), record(move), traces)
    assert view is not None
    assert view.total_ms == 60
    assert [(step.number, step.took_ms) for step in view.steps] == [
        (1, 0),
        (2, 10),
        (3, 2),
        (4, 30),
        (4, 8),
        (5, 0),
        (6, 4),
        (6, 6),
    ]
    lost = view_move(Key("t", 0), record(move), [])
    assert lost is not None
    assert lost.total_ms is None
    assert view_move(Key("t", 0), record(None), traces) is None
