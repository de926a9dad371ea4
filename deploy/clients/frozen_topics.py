"""Ask a broker for the frozen topics: those of snapshots, and deleted ones that can come back."""

from collections.abc import Sequence
from typing import Final

from broker.wire import apis
from broker.wire.error_codes import ErrorCode
from broker.wire.frozen_topics import FrozenTopicInfo, decode_frozen_topic
from broker.wire.gen import metadata
from deploy.clients.wire import WireClient
from deploy.errors import KafkaFailed

_CODES: Final = {int(code): code for code in ErrorCode}


def frozen_topics(bootstrap: str, full_names: Sequence[str] = ()) -> list[FrozenTopicInfo]:
    """Return frozen topics, sorted by name and snapshot; all if no names are given. A name is
    `NAME@SNAPSHOT`, or `NAME@TOPIC_ID` for a deleted topic.

    Raises KafkaFailed, also for a name that no frozen topic has.
    """
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in full_names],
        allow_auto_topic_creation=False,
        frozen_topics=True,
    )
    with WireClient(bootstrap) as client:
        answer = client.ask(
            apis.METADATA, request, metadata.encode_request, metadata.decode_response
        )
    found: list[FrozenTopicInfo] = []
    for topic in answer.topics:
        if topic.error_code or not topic.frozen_topic:
            code = _CODES.get(topic.error_code)
            reason = "the broker knows no frozen topics: upgrade it" if not code else code.message
            raise KafkaFailed(f"{topic.name!r} is not a frozen topic: {reason}")
        found.append(decode_frozen_topic(topic.frozen_topic))
    return sorted(found, key=lambda topic: (topic.name, topic.snapshot, topic.since_ms))
