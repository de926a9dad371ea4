"""Read the internal topic of a coordinator, as any consumer may."""

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.support.clients import TIMEOUT_S, checked


def read_internal_topic(address: str, topic: str) -> list[tuple[bytes, bytes | None]]:
    """Return the keys and values of all records, partition by partition in offset order."""
    # A coordinator may delete the first records in the meantime.
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reads-the-log",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    open_ends = set(range(len(consumer.list_topics(topic).topics[topic].partitions)))
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in open_ends])
    found: list[tuple[bytes, bytes | None]] = []
    while open_ends:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"no end of {open_ends}"
        error = message.error()
        # A partition may end with a transaction marker, which consumers do not receive.
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            open_ends.discard(message.partition())
            continue
        checked(message)
        found.append((message.key(), message.value()))
    consumer.close()
    return found
