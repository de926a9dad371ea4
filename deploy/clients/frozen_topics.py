"""List frozen topics: snapshot topics, and deleted topics that can be restored. Delete topics, and
find deleted topics that can be restored.
"""

from collections.abc import Sequence

from penstock.deploy.clients.forks import delete_on
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import DoesNotExist, KafkaFailed
from penstock.protocol.error_codes import known_code
from penstock.protocol.frozen_topics import FrozenTopicInfo, decode_frozen_topic
from penstock.protocol.gen import metadata
from penstock.stream.format.manifest.model import in_snapshot


def frozen_topics(bootstrap: str, full_names: Sequence[str] = ()) -> list[FrozenTopicInfo]:
    """Return frozen topics, sorted by name and snapshot, or all of them if no names are given. A
    name is `NAME@SNAPSHOT`, or `NAME@TOPIC_ID` for a deleted topic.

    Raises KafkaFailed, including if no frozen topic has one of the names.
    """
    with WireClient(bootstrap) as client:
        return [topic for topic in _send_request(client, full_names) if not topic.of_live_topic]


def deleted_topics(bootstrap: str) -> list[FrozenTopicInfo]:
    """Return the deleted topics that can be restored, sorted by name and time."""
    return [topic for topic in frozen_topics(bootstrap) if not topic.snapshot]


def deleted_records(bootstrap: str) -> list[FrozenTopicInfo]:
    """Return the topics whose deleted records can be restored, sorted by name, with the partitions
    that have such records.
    """
    with WireClient(bootstrap) as client:
        return [topic for topic in _send_request(client, ()) if topic.of_live_topic]


def full_name(topic: FrozenTopicInfo) -> str:
    """Return the name for readers of the store."""
    return in_snapshot(topic.name, topic.snapshot or str(topic.topic_id))


def find_deleted(bootstrap: str, wanted: str) -> FrozenTopicInfo:
    """Return the deleted topic with this id or `NAME@TOPIC_ID`, otherwise the last one deleted with
    this name. Raises KafkaFailed if there is none.
    """
    found = deleted_topics(bootstrap)
    named = [
        topic for topic in found if wanted in (str(topic.topic_id), full_name(topic))
    ] or sorted(
        (topic for topic in found if topic.name == wanted), key=lambda topic: topic.since_ms
    )
    if not named:
        raise DoesNotExist(
            f"no deleted topic has the name or id {wanted!r}: it never existed, or its grace"
            " period has ended; `penstock topics list --deleted` lists topics that can be restored"
        )
    return named[-1]


def delete_topic(bootstrap: str, name: str) -> FrozenTopicInfo | None:
    """Delete a topic, and return it if it can be restored. A deleted topic, given as
    `NAME@TOPIC_ID`, is removed permanently.
    """
    # Use one connection, because the metadata of other brokers may not include the deletion yet.
    with WireClient(bootstrap) as client:
        (result,) = delete_on(client, [name])
        found = _send_request(client, ())
    return next((topic for topic in found if topic.topic_id == result.topic_id), None)


def _send_request(client: WireClient, full_names: Sequence[str]) -> list[FrozenTopicInfo]:
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in full_names],
        allow_auto_topic_creation=False,
        frozen_topics=True,
    )
    response = client.send_request(apis.METADATA, request, metadata.MetadataResponse)
    found: list[FrozenTopicInfo] = []
    for topic in response.topics:
        if topic.error_code or not topic.frozen_topic:
            reason = (
                known_code(topic.error_code).message
                if topic.error_code
                else "the broker knows no frozen topics: upgrade it"
            )
            raise KafkaFailed(f"{topic.name!r} is not a frozen topic: {reason}")
        found.append(decode_frozen_topic(topic.frozen_topic))
    return sorted(found, key=lambda topic: (topic.name, topic.snapshot, topic.since_ms))
