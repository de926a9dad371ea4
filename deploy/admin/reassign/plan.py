"""Parse and write reassignment files, propose assignments, and compute the progress of
partitions. Pure.

Source: Kafka `ReassignPartitionsCommand`, `AdminUtils.assignReplicasToBrokers`.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock.deploy.errors import UsageError

_VERSION: Final = 1


class Key(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Assignment = Mapping[Key, tuple[int, ...]]
"""Candidates of each partition, in order."""


class _Topic(msgspec.Struct):
    topic: str


class _TopicsFile(msgspec.Struct):
    topics: list[_Topic]
    version: int = _VERSION


class _Partition(_Topic):
    partition: int


class _PartitionsFile(msgspec.Struct):
    partitions: list[_Partition]


class _Reassignment(_Partition):
    replicas: list[int]
    log_dirs: list[str] = []


class _ReassignmentFile(msgspec.Struct):
    partitions: list[_Reassignment]
    version: int = _VERSION


_FileT = TypeVar("_FileT", _TopicsFile, _PartitionsFile, _ReassignmentFile)


def _parsed(text: str, kind: type[_FileT], example: str) -> _FileT:
    try:
        parsed = msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"the file is invalid: {error}; for example: {example}") from None
    if not isinstance(parsed, _PartitionsFile) and parsed.version != _VERSION:
        raise UsageError(
            f"the file has version {parsed.version}; only version {_VERSION} is supported"
        )
    return parsed


def _check_once(keys: Sequence[object]) -> None:
    if repeated := [str(key) for key, count in Counter(keys).items() if count > 1]:
        raise UsageError(f"the file lists these more than once: {', '.join(repeated)}")


def parse_topics(text: str) -> list[str]:
    """Parse `--topics-to-move-json-file`."""
    parsed = _parsed(text, _TopicsFile, '{"topics": [{"topic": "foo"}], "version": 1}')
    names = [item.topic for item in parsed.topics]
    _check_once(names)
    return names


def parse_partitions(text: str) -> list[Key]:
    """Parse `--path-to-json-file` of an election."""
    parsed = _parsed(text, _PartitionsFile, '{"partitions": [{"topic": "foo", "partition": 0}]}')
    keys = [Key(item.topic, item.partition) for item in parsed.partitions]
    _check_once(keys)
    return keys


def parse_reassignment(text: str) -> Assignment:
    """Parse `--reassignment-json-file`.

    Invariant: the files are compatible with `kafka-reassign-partitions` in both directions. An
    invalid file is rejected as a whole with the reason. The proposal is a function of its input.
    """
    example = '{"version": 1, "partitions": [{"topic": "foo", "partition": 0, "replicas": [1, 2]}]}'
    parsed = _parsed(text, _ReassignmentFile, example)
    _check_once([Key(item.topic, item.partition) for item in parsed.partitions])
    if not parsed.partitions:
        raise UsageError(f"the file lists no partition; for example: {example}")
    if moved := [item for item in parsed.partitions if set(item.log_dirs) - {"any"}]:
        raise UsageError(
            f"{moved[0].topic}-{moved[0].partition}: log_dirs can only be 'any': brokers have no"
            " log directories"
        )
    return {Key(item.topic, item.partition): tuple(item.replicas) for item in parsed.partitions}


def parse_brokers(text: str) -> list[int]:
    """Parse `--broker-list`."""
    try:
        brokers = [int(item) for item in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--broker-list {text!r} is invalid: use broker ids separated by commas, as in 0,1,2"
        ) from None
    if len(set(brokers)) != len(brokers):
        raise UsageError(f"--broker-list {text!r} contains a broker more than once")
    return brokers


def to_json(assignment: Assignment) -> str:
    """Return the assignment on one line, as printed by Kafka's tool."""
    return msgspec.json.encode(document(assignment)).decode()


def document(assignment: Assignment) -> dict[str, object]:
    """Return the assignment in the format of a reassignment file."""
    items = [
        _Reassignment(key.topic, key.partition, list(replicas), ["any"] * len(replicas))
        for key, replicas in sorted(assignment.items())
    ]
    return {"version": _VERSION, "partitions": items}


def propose(current: Assignment, brokers: Sequence[int]) -> Assignment:
    """Assign partition i of a topic to broker start + i of the list, cyclically, and additional
    candidates to the next brokers.

    Each partition keeps its number of candidates, at most the number of brokers. The start is a
    hash of the topic's name, so that topics with one partition are spread as well.
    """
    proposed: dict[Key, tuple[int, ...]] = {}
    ordered = sorted(brokers)
    for key, replicas in sorted(current.items()):
        start = zlib.crc32(key.topic.encode()) + key.partition
        width = min(len(replicas), len(ordered))
        proposed[key] = tuple(ordered[(start + nth) % len(ordered)] for nth in range(width))
    return proposed


def status_of(
    key: Key, wanted: tuple[int, ...], current: tuple[int, ...] | None, ongoing: Collection[Key]
) -> tuple[bool, str]:
    """Return (done, text) for one partition."""
    if key in ongoing:
        return False, f"Reassignment of partition {key} is still in progress."
    if current is None:
        return False, f"Partition {key} does not exist."
    if current == wanted:
        return True, f"Reassignment of partition {key} is completed."
    return False, (
        f"There is no active reassignment of partition {key}, but replica set is"
        f" {ids(current)} rather than {ids(wanted)}."
    )


def ids(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas))
