"""Offsets as written by Spark's Kafka source: `{"topic":{"0":23}}`, end exclusive, -1 for latest
and -2 for earliest. A key `topic#id` without partitions contains the topic id of the offsets;
Kafka's source ignores it.

Source: Spark `JsonUtils`, `KafkaOffsetRangeLimit`.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, cast

from penstock.lake.spark.errors import InvalidOption

LATEST: Final = -1
EARLIEST: Final = -2

_ID_MARK: Final = "#"
"""Separates topic and topic id. Topic names cannot contain it."""

OffsetsJson = dict[str, dict[str, int]]


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = Mapping[TopicPartition, int]


def scala_set(partitions: Collection[TopicPartition]) -> str:
    """Format partitions as Scala prints a set."""
    return f"Set({', '.join(str(item) for item in sorted(partitions))})"


def to_json(offsets: Offsets, topic_ids: Mapping[str, str] | None = None) -> OffsetsJson:
    """Return the offsets, with the given topic ids.

    Invariant: output is sorted, so that equal offsets result in equal text. Checkpoints can be
    copied to `startingOffsets` of either source.
    """
    found: OffsetsJson = {}
    for item in sorted(offsets):
        found.setdefault(item.topic, {})[str(item.partition)] = offsets[item]
    ids = topic_ids or {}
    return found | {f"{name}{_ID_MARK}{ids[name]}": {} for name in found if name in ids}


def from_json(given: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Parse the result of `to_json`."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, parts in given.items()
        for number, offset in parts.items()
    }


def topic_ids_of(given: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Return the topic ids in the result of `to_json`."""
    marked = (name.rpartition(_ID_MARK) for name, parts in given.items() if not parts)
    return {name: topic_id for name, mark, topic_id in marked if mark}


def parse_offsets(text: str) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """Return the offsets, and the topic ids by name if they contain any. Raise InvalidOption."""
    try:
        offsets = dict(_entries(text))
        if min(offsets.values(), default=0) < EARLIEST:
            raise ValueError(text)
        return offsets, topic_ids_of(json.loads(text))
    except (ValueError, RecursionError):
        raise InvalidOption(
            f'Expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, got {text}'
        ) from None


def parse_timestamps(text: str) -> dict[TopicPartition, int]:
    try:
        return dict(_entries(text))
    except (ValueError, RecursionError):
        example = (
            '{"topicA": {"0": 123456789, "1": 123456789},\n"topicB": {"0": 123456789, "1":'
            " 123456789}}"
        )
        raise InvalidOption(f"Expected e.g. {example}, got {text}") from None


def parse_partitions(text: str) -> list[TopicPartition]:
    try:
        return sorted(
            {
                TopicPartition(topic, _number(item))
                for topic, parts in _object(json.loads(text))
                for item in _list(parts)
            }
        )
    except (ValueError, RecursionError):
        raise InvalidOption(
            f'Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}'
        ) from None


def _entries(text: str) -> Iterator[tuple[TopicPartition, int]]:
    for topic, parts in _object(json.loads(text)):
        for number, value in _object(parts):
            yield TopicPartition(topic, int(number)), _number(value)


def _object(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ValueError(value)
    return list(cast("dict[str, object]", value).items())


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(value)
    return cast("list[object]", value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(value)
    return value
