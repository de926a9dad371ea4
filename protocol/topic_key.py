"""Topics in Produce and Fetch: by name, or by id in newer versions (KIP-516)."""

from typing import Final, TypeAlias
from uuid import UUID

from penstock.protocol.apis import ApiSpec
from penstock.protocol.errors import UnencodableValue
from penstock.protocol.primitives import Writer

TopicKey: TypeAlias = str | UUID

NO_TOPIC_ID: Final = UUID(int=0)
"""Sent by clients if no topic is specified."""


def write_topic_key(
    writer: Writer, api: ApiSpec, version: int, topic: TopicKey, *, by_id: bool
) -> None:
    """Write the id or the name. Raises UnencodableValue if `topic` is of the other type."""
    if by_id:
        if isinstance(topic, str):
            raise UnencodableValue(
                f"{api.name} v{version} identifies topics by id, but {topic!r} is a name"
            )
        writer.uuid(topic)
    elif isinstance(topic, UUID):
        raise UnencodableValue(
            f"{api.name} v{version} identifies topics by name, but {topic} is an id"
        )
    else:
        writer.string(topic, api.is_flexible(version))
