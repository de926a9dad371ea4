"""Fields that the records of consumer groups and of share groups have in common."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from penstock.broker.groups.consumer.model import Assignment
from penstock.broker.wire.primitives import Reader, Writer

NULL_UUID: Final = UUID(int=0)


def write_names(writer: Writer, names: Sequence[str]) -> None:
    writer.length(len(names), True)
    for name in names:
        writer.string(name, True)


def read_names(reader: Reader) -> list[str]:
    return [reader.string(True) for _ in range(reader.count(True, 1))]


def write_partitions(writer: Writer, partitions: Assignment) -> None:
    writer.length(len(partitions), True)
    for topic_id, indexes in sorted(partitions.items(), key=lambda item: item[0].int):
        writer.uuid(topic_id)
        writer.i32s(sorted(indexes), True)
        writer.append(0)


def read_partitions(reader: Reader) -> Assignment:
    partitions: dict[UUID, frozenset[int]] = {}
    for _ in range(reader.count(True, 18)):
        topic_id = reader.uuid() or NULL_UUID
        partitions[topic_id] = frozenset(reader.i32s(True))
        reader.skip_tags()
    return partitions
