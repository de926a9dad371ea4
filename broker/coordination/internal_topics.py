"""The internal topics of coordinators: names, settings, and creation on first use, as in Kafka."""

from collections.abc import Mapping
from typing import Final

from penstock.broker.partition.local_broker import LocalBroker
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.controller.metadata.internal_topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)

__all__ = [
    "INTERNAL_TOPICS",
    "OFFSETS_TOPIC",
    "SHARE_STATES_TOPIC",
    "TRANSACTIONS_TOPIC",
    "ensure_topic",
]

_CONFIGS: Final[Mapping[str, str | None]] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}


async def ensure_topic(node: LocalBroker, name: str) -> None:
    """Create the topic unless it exists. If two brokers call this at the same time, both calls
    succeed.
    """
    if node.image.topics.by_name(name) is not None:
        return
    config = node.config
    counts = {
        OFFSETS_TOPIC: config.offsets_topic_num_partitions,
        TRANSACTIONS_TOPIC: config.transaction_state_log_num_partitions,
        SHARE_STATES_TOPIC: config.share_coordinator_state_topic_num_partitions,
    }
    topic = NewTopic(name=name, partitions=counts[name], configs=dict(_CONFIGS))
    await node.client.create_topics(
        CreateTopics(topics=[topic]), timeout_s=config.topic_create_timeout_ms / 1_000
    )
