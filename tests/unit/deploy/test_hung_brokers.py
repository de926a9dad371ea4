"""Commands that query all brokers while one hangs: they print the reports of the others, and exit
with code 1.
"""

import json
from collections.abc import Generator, Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.deploy.cli.app import app
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.client import brokers, connection
from penstock.protocol.gen import (
    describe_groups,
    describe_log_dirs,
    find_coordinator,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_fetch,
)
from tests.support.silent_brokers import RESPONSES, listening, responding

LEADERS = {"orders": (0, 1), "clicks": (0,)}
ENDS = {"orders": {0: 30}, "clicks": {0: 7}}
COMMITTED = {
    "known": {"clicks": {0: 5}},
    "unknown": {"clicks": {0: 5}, "orders": {0: 20, 1: 20}},
    "deleted": {"gone": {0: 1}},
    "none": {},
}


def responses_of(own: str, silent: str) -> Mapping[ApiSpec, object]:
    """Return the responses of broker 0 at `own`; broker 1, at `silent`, never responds."""
    addresses = [address.rpartition(":") for address in (own, silent)]
    return {
        **RESPONSES,
        apis.METADATA: metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node, host, int(port))
                for node, (host, _, port) in enumerate(addresses)
            ],
            topics=[
                metadata.MetadataResponseTopic(
                    name=name,
                    partitions=[
                        metadata.MetadataResponsePartition(partition_index=index, leader_id=leader)
                        for index, leader in enumerate(leaders)
                    ],
                )
                for name, leaders in LEADERS.items()
            ],
        ),
        apis.FIND_COORDINATOR: find_coordinator.FindCoordinatorResponse(
            node_id=0, host=addresses[0][0], port=int(addresses[0][2])
        ),
        apis.LIST_GROUPS: list_groups.ListGroupsResponse(
            groups=[
                list_groups.ListedGroup(name, "consumer", "Empty", "classic") for name in COMMITTED
            ]
        ),
        apis.DESCRIBE_GROUPS: describe_groups.DescribeGroupsResponse(
            groups=[describe_groups.DescribedGroup(group_id="unknown", group_state="Empty")]
        ),
        apis.OFFSET_FETCH: offset_fetch.OffsetFetchResponse(
            topics=[
                offset_fetch.OffsetFetchResponseTopic(
                    topic,
                    [
                        offset_fetch.OffsetFetchResponsePartition(index, offset)
                        for index, offset in offsets.items()
                    ],
                )
                for topic, offsets in COMMITTED["unknown"].items()
            ],
            groups=[
                offset_fetch.OffsetFetchResponseGroup(
                    group,
                    [
                        offset_fetch.OffsetFetchResponseTopics(
                            name=topic,
                            partitions=[
                                offset_fetch.OffsetFetchResponsePartitions(index, offset)
                                for index, offset in offsets.items()
                            ],
                        )
                        for topic, offsets in topics.items()
                    ],
                )
                for group, topics in COMMITTED.items()
            ],
        ),
        apis.LIST_OFFSETS: list_offsets.ListOffsetsResponse(
            topics=[
                list_offsets.ListOffsetsTopicResponse(
                    topic,
                    [
                        list_offsets.ListOffsetsPartitionResponse(index, offset=end)
                        for index, end in ends.items()
                    ],
                )
                for topic, ends in ENDS.items()
            ]
        ),
        apis.DESCRIBE_LOG_DIRS: describe_log_dirs.DescribeLogDirsResponse(
            results=[describe_log_dirs.DescribeLogDirsResult(log_dir="s3://b")]
        ),
        apis.LIST_TRANSACTIONS: list_transactions.ListTransactionsResponse(
            transaction_states=[list_transactions.TransactionState("t", 1, "Ongoing")]
        ),
    }


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    monkeypatch.setattr(connection, "FIRST_RESPONSE_S", 0.5)
    monkeypatch.setattr(brokers, "RETRY_S", 0.2)
    responses: dict[ApiSpec, object] = {}
    with listening() as (silent, _), responding(responses) as address:
        responses |= responses_of(address, silent)
        yield address


def run(bootstrap: str, *arguments: str, code: int = 1) -> tuple[Any, str]:
    """Return the parsed stdout and stderr."""
    result = CliRunner().invoke(app, [*arguments, "--json", "--bootstrap", bootstrap])
    assert (result.exit_code, bool(result.stdout)) == (code, True), result
    return json.loads(result.stdout), result.stderr


@pytest.mark.parametrize(
    ("command", "keys", "expected", "missing"),
    [
        (
            "groups list",
            ("group", "lag"),
            {"deleted": None, "known": 2, "none": None, "unknown": None},
            "the groups that it coordinates are missing",
        ),
        (
            "log-dirs describe",
            ("broker", "log_dir"),
            {0: "s3://b"},
            "the partitions that it leads are missing",
        ),
        (
            "transactions list",
            ("transactional_id", "coordinator"),
            {"t": 0},
            "the transactional ids that it coordinates are missing",
        ),
        (
            "topics offsets",
            ("topic", "offset"),
            {"clicks": 7, "orders": 30},
            "the offsets of the partitions that it leads are unknown",
        ),
    ],
)
def test_a_list_contains_what_the_other_brokers_report(
    bootstrap: str, command: str, keys: tuple[str, str], expected: dict[Any, Any], missing: str
) -> None:
    rows, said = run(bootstrap, *command.split())
    assert {row[keys[0]]: row[keys[1]] for row in rows} == expected
    assert said.startswith("error: broker 1 does not respond at 127.0.0.1:")
    assert said.rstrip().endswith(missing)


def test_the_lag_of_a_group_is_unknown_while_a_leader_hangs(bootstrap: str) -> None:
    (view,), _ = run(bootstrap, "groups", "describe", "unknown", code=0)
    assert view["lag"] is None
    ends = {(row["topic"], row["partition"]): row["log_end_offset"] for row in view["offsets"]}
    assert ends == {("clicks", 0): 7, ("orders", 0): 30, ("orders", 1): None}


def test_a_hung_broker_is_not_queried_again_for_some_time(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = connection.Connection

    def counted(address: str, *more: Any, **others: Any) -> connection.Connection:
        opened.append(address)
        return real(address, *more, **others)

    monkeypatch.setattr(brokers, "Connection", counted)
    run(bootstrap, "groups", "list")
    assert sum(address != bootstrap for address in opened) == 1
