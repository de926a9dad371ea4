"""Explain why a topic rejected a record. librdkafka drops the broker's message, so the reason is
derived from the error code, the record and the topic's configs.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import KafkaError

from penstock.base.errors import ExpectedError
from penstock.controller.metadata.topic_configs import KEY_SCHEMA, VALUE_SCHEMA, SchemaConfigs
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed

if TYPE_CHECKING:
    from confluent_kafka import Message

_SIZES: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._BAD_MSG})
_EXPLAINED: Final = frozenset({KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, *_SIZES})


Refused: TypeAlias = "tuple[KafkaError, Message[bytes, bytes]]"


def refusal(kafka: Kafka, topic: str, refused: Sequence[Refused]) -> ExpectedError:
    """Return the error for records that were not acknowledged, including valid records in a batch
    with an invalid one. Requests the topic's configs or partitions if they may be the reason.
    """
    error, message = refused[0]
    failure = kafka.failure(error, f"topic {topic!r} refused a record")
    try:
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            count = len(kafka.topic(topic).partitions)
            return UsageError(
                f"partition {message.partition()} of {topic!r} does not exist: {_numbers(count)};"
                f" `penstock topics alter {topic} --partitions N` adds partitions"
            )
        if error.code() not in _EXPLAINED:
            return failure
        configs = kafka.topic_config(topic)
    except ExpectedError:  # the user is not authorized to describe the topic
        return failure
    has_keys = all(each.key() is not None for _, each in refused)
    reason = _reason(error.code(), configs, has_keys=has_keys)
    return KafkaFailed(
        f"topic {topic!r} refused a record: {reason} ({error.name()}); `penstock configs describe"
        f" --topic {topic}` shows its configs"
    )


def _numbers(count: int) -> str:
    return "its only partition is 0" if count == 1 else f"its partitions are 0 to {count - 1}"


def _reason(code: int, configs: Mapping[str, str], *, has_keys: bool) -> str:
    if code == KafkaError.INVALID_TIMESTAMP:
        before = configs.get("message.timestamp.before.max.ms", "unlimited")
        after = configs.get("message.timestamp.after.max.ms", "unlimited")
        return (
            "its timestamp lies outside message.timestamp.before.max.ms"
            f" ({before}) and message.timestamp.after.max.ms ({after})"
        )
    if code in _SIZES:
        limit = configs.get("max.message.bytes", "")
        return f"its batch is larger than max.message.bytes ({limit})"
    if not has_keys and "compact" in configs.get("cleanup.policy", ""):
        return "it has no key, and cleanup.policy=compact requires one; --key sets it"
    broken = [
        name
        for part, schema in (("key", KEY_SCHEMA), ("value", VALUE_SCHEMA))
        if (name := _schema_in_use(schema, configs, part))
    ]
    if broken:
        return f"it does not match {' or '.join(broken)}"
    return "it is not a valid record"


def _schema_in_use(schema: SchemaConfigs, configs: Mapping[str, str], part: str) -> str:
    if configs.get(schema.is_registered) == "true":
        return f"a schema registered for the {part} ({schema.is_registered}=true)"
    return f"the {part}'s schema in {schema.schema}" if configs.get(schema.schema) else ""
