"""Topics and records with which a local cluster starts: the meaning of each line, and errors that
contain the line.
"""

import pytest

from penstock.deploy.errors import UsageError
from penstock.deploy.local.seed import SeedRecord, parse_seed, parse_topics

TOPICS = {"orders": 3, "clicks": 12}


def parsed(*lines: str, topics: dict[str, int] | None = None) -> list[SeedRecord]:
    return list(
        parse_seed(
            [line.encode() + b"\n" for line in lines],
            TOPICS if topics is None else topics,
            "seed.jsonl",
        )
    )


def test_topics_are_parsed() -> None:
    assert parse_topics("orders:3, clicks:12,plain") == {"orders": 3, "clicks": 12, "plain": 1}
    assert parse_topics("") == {}


@pytest.mark.parametrize("text", ["orders:x", "orders:0", ":3", "orders:1001", "orders:"])
def test_invalid_topics_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="is not allowed: NAME:PARTITIONS"):
        parse_topics(text)


def test_a_repeated_topic_is_rejected() -> None:
    with pytest.raises(UsageError, match="contains 'a' twice"):
        parse_topics("a:1,a:2")


def test_complete_records_are_parsed() -> None:
    line = (
        '{"topic": "clicks", "key": "k", "value": {"n": [1, 2]}, "headers": {"h": "1"},'
        ' "partition": 11, "timestamp_ms": 5}'
    )
    assert parsed(line) == [SeedRecord("clicks", b"k", b'{"n":[1,2]}', (("h", b"1"),), 11, 5)]
    assert parsed('{"topic": "other", "key": 7, "value": null}') == [
        SeedRecord("other", b"7", None, (), -1, 0)
    ]


@pytest.mark.parametrize(
    "line", ["plain text", '{"id": 1, "price": 2.5}', "[1, 2]", "42", '"quoted"']
)
def test_plain_values_are_unchanged(line: str) -> None:
    assert parsed(line) == [SeedRecord("orders", None, line.encode(), (), -1, 0)]


def test_empty_lines_only_affect_line_numbers() -> None:
    with pytest.raises(UsageError, match=r"seed.jsonl, line 3: not JSON"):
        parsed("a", "", '{"value": }')


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"topic": "orders", "vlaue": 1}', "line 1: unknown field 'vlaue'; did you mean 'value'?"),
        (
            '{"topic": "orders", "value": 1, "partition": 3}',
            r"line 1: 'orders': partition=3 is not allowed: -1 to 2",
        ),
        (
            '{"topic": "new", "value": 1, "partition": 1}',
            r"line 1: 'new': partition=1 is not allowed: -1 to 0",
        ),
        ('{"value": 1, "partition": true}', "partition=True is not allowed"),
        (
            '{"value": 1, "headers": ["h"]}',
            "line 1: headers must be an object with string values",
        ),
        ('{"topic": 5, "value": 1}', "line 1: no topic"),
    ],
)
def test_errors_contain_the_line(line: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parsed(line)


def test_a_plain_value_requires_a_topic() -> None:
    with pytest.raises(
        UsageError, match="line 1: no topic: add the field 'topic', or pass --topics"
    ):
        parsed("plain", topics={})
