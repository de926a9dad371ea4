"""The topics in which brokers keep what they coordinate: names, settings, and their creation on
first use, as Kafka does.

Source: Kafka AutoTopicCreationManager, `GroupConfig`,
`TransactionStateManager.transactionTopicConfigs`.
"""

from collections.abc import Mapping
from typing import Final

from broker.partition.local_broker import LocalBroker
from controller.api.messages import CreateTopics, NewTopic
from controller.metadata.internal_topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC

__all__ = ["INTERNAL_TOPICS", "OFFSETS_TOPIC", "TRANSACTIONS_TOPIC", "ensure_topic"]

_CONFIGS: Final[Mapping[str, str | None]] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}


async def ensure_topic(node: LocalBroker, name: str) -> None:
    """Create it unless it exists. Two brokers may do this at once: the second is told that it
    exists, which is what it wanted.
    """
    if node.image.topics.by_name(name) is not None:
        return
    config = node.config
    count = (
        config.offsets_topic_num_partitions
        if name == OFFSETS_TOPIC
        else config.transaction_state_log_num_partitions
    )
    topic = NewTopic(name=name, partitions=count, configs=dict(_CONFIGS))
    await node.client.create_topics(
        CreateTopics(topics=[topic]), timeout_s=config.topic_create_timeout_ms / 1_000
    )
