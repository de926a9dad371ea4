"""The topics that a consumer subscribes to, from the metadata that it joins its group with.

All versions begin with a version and the topics.
Must not: interpret what follows the topics, which grows from version to version.
Source: Kafka `ConsumerProtocolSubscription.json`.
"""

from collections.abc import Iterable
from typing import Final

from broker.groups.model import Member
from broker.wire.errors import WireError
from broker.wire.primitives import Reader

CONSUMER: Final = "consumer"
"""The protocol type of groups of consumers, as opposed to those of Kafka Connect."""


def subscribed_topics(members: Iterable[Member]) -> frozenset[str] | None:
    """Return the topics of all members with any of their assignors. None: one does not say, so that
    it may be any.
    """
    topics: set[str] = set()
    for member in members:
        for protocol in member.protocols:
            try:
                topics.update(_decode(protocol.metadata))
            except WireError:
                return None
    return frozenset(topics)


def _decode(metadata: bytes) -> list[str]:
    """Return the topics of one subscription. Raises WireError."""
    reader = Reader(metadata)
    reader.i16()
    return [reader.string(False) for _ in range(reader.count(False, 2))]
