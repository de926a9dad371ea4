"""The protocol that classic consumers embed in JoinGroup and SyncGroup: subscriptions and
assignments. Consumer groups (KIP-848) use it for classic members, and OffsetDelete uses it to find
subscribed topics. User data is ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.groups.classic.model import Member
from penstock.broker.groups.common.model import merged
from penstock.protocol.errors import WireError
from penstock.protocol.primitives import REQUEST_ELEMENTS_MAX, Reader, Writer

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumer groups, as opposed to Kafka Connect."""

_FIRST_WITH_OWNED: Final = 1
_FIRST_WITH_GENERATION: Final = 2
_FIRST_WITH_RACK: Final = 3
_VERSION_MAX: Final = 3


class MalformedEmbedded(Exception):
    """Raised for bytes that are not in the format of this protocol."""


@dataclass(frozen=True, slots=True)
class EmbeddedSubscription:
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    rack_id: str | None = None
    generation: int = -1
    """The generation in which `owned` was assigned; -1 if unspecified."""


def decode_subscription(data: bytes) -> EmbeddedSubscription:
    """Decode a subscription. Raises MalformedEmbedded."""
    try:
        reader = _reader(data)
        version, topics = _read_topics(reader)
        _skip_user_data(reader)
        owned: dict[str, frozenset[int]] = {}
        if version >= _FIRST_WITH_OWNED:
            owned = _read_partitions(reader)
        generation = reader.i32() if version >= _FIRST_WITH_GENERATION else -1
        rack_id = reader.nullable_string(False) if version >= _FIRST_WITH_RACK else None
        return EmbeddedSubscription(topics, owned, rack_id, generation)
    except WireError as error:
        raise MalformedEmbedded(str(error)) from error


def subscribed_topics(members: Iterable[Member]) -> frozenset[str] | None:
    """Return the topics of all members with any of their assignors, or None if a subscription
    cannot be decoded, because that member may be subscribed to any topic. Fields after the topics
    are ignored because they depend on the version.
    """
    topics: set[str] = set()
    for member in members:
        for protocol in member.protocols:
            try:
                topics.update(_read_topics(_reader(protocol.metadata))[1])
            except WireError:
                return None
    return frozenset(topics)


def decode_assignment(data: bytes) -> dict[str, frozenset[int]]:
    """Return the assigned partitions by topic; empty bytes represent an empty assignment. Raises
    MalformedEmbedded.
    """
    if not data:
        return {}
    try:
        reader = _reader(data)
        reader.i16()
        return _read_partitions(reader)
    except WireError as error:
        raise MalformedEmbedded(str(error)) from error


def encode_assignment(partitions: Mapping[str, frozenset[int]], subscription: bytes) -> bytes:
    """Encode the assignment with the version of the member's subscription."""
    version = min(max(Reader(subscription).i16(), 0), _VERSION_MAX)
    writer = Writer(version.to_bytes(2, "big"))
    writer.length(len(partitions), False)
    for topic, indexes in sorted(partitions.items()):
        writer.string(topic, False)
        writer.i32s(sorted(indexes), False)
    writer.null(False)
    return bytes(writer)


def _reader(data: bytes) -> Reader:
    return Reader(data, 0, REQUEST_ELEMENTS_MAX)


def _read_topics(reader: Reader) -> tuple[int, tuple[str, ...]]:
    """Return the version and the topics of a subscription. Raises WireError."""
    version = reader.i16()
    return version, tuple(reader.string(False) for _ in range(reader.count(False, 2)))


def _skip_user_data(reader: Reader) -> None:
    size = reader.i32()
    if size > 0:
        reader.take(size)


def _read_partitions(reader: Reader) -> dict[str, frozenset[int]]:
    count = reader.count(False, 6)
    return merged((reader.string(False), reader.i32s(False)) for _ in range(count))
