"""The plan that changes a cluster's topics to match a file."""

import pytest

from penstock.deploy.admin.topic_plan import (
    ChangedTopic,
    FoundTopic,
    WantedTopic,
    plan,
    read_wanted,
)
from penstock.deploy.errors import UsageError

FOUND = {"orders": FoundTopic(3, {"retention.ms": "1000"})}


def test_json_and_toml_files_are_equivalent() -> None:
    configs = {"retention.ms": 3_600_000, "compression.type": "zstd", "preallocate": False}
    expected = [WantedTopic("orders", 3, configs), WantedTopic("events")]
    assert (
        read_wanted(
            b'{"topics": [{"name": "orders", "partitions": 3, "configs": {"retention.ms": 3600000,'
            b' "compression.type": "zstd", "preallocate": false}}, {"name": "events"}]}',
            "topics.json",
        )
        == expected
    )
    assert (
        read_wanted(
            b'[[topics]]\nname = "orders"\npartitions = 3\n[topics.configs]\n"retention.ms" ='
            b' 3600000\n"compression.type" = "zstd"\npreallocate = false\n[[topics]]\nname ='
            b' "events"\n',
            "topics.toml",
        )
        == expected
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"orders", "malformed"),
        (b"[]", "expected {"),
        (b'{"topics": [{"partitions": 3}]}', "name"),
        (b'{"topics": [{"name": "a", "partition": 3}]}', "partition"),
        (b'{"topics": [{"name": "a", "partitions": 0}]}', "partitions=0"),
        (b'{"topics": [{"name": "a"}, {"name": "a"}]}', "is listed twice"),
        (b'{"topics": [{"name": "\xff"}]}', "topics.json"),
    ],
)
def test_invalid_files_are_rejected(text: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_wanted(text, "topics.json")


def test_only_differences_are_changed() -> None:
    requested = [
        WantedTopic("orders", 6, {"retention.ms": 1000, "min.compaction.lag.ms": 2.0}),
        WantedTopic("events", -1, {"cleanup.policy": "compact", "preallocate": True}),
    ]
    assert plan(requested, FOUND) == [
        ChangedTopic("orders", False, 6, {"min.compaction.lag.ms": "2"}),
        ChangedTopic("events", True, -1, {"cleanup.policy": "compact", "preallocate": "true"}),
    ]
    assert plan([WantedTopic("orders", 3, {"retention.ms": 1000})], FOUND) == []
    assert plan([WantedTopic("orders")], FOUND) == []


def test_configs_may_have_units() -> None:
    assert plan([WantedTopic("orders", 3, {"retention.ms": "1s"})], FOUND) == []
    with pytest.raises(UsageError, match=r"retention\.ms='1m' .* ms, s, min, h or d"):
        plan([WantedTopic("orders", 3, {"retention.ms": "1m"})], FOUND)


def test_partitions_are_never_removed() -> None:
    requested = [WantedTopic("events"), WantedTopic("orders", 2)]
    with pytest.raises(UsageError, match="cannot be reduced to 2"):
        plan(requested, FOUND)
