"""Determine the topic of a committed offset. Offsets belong to a topic id, not to a topic name.

A record without a topic id belongs to the topic with the name in the record. From level 1 of
`offsets.version` on, this topic must have existed at the time of the upgrade.
"""

from collections.abc import Callable
from uuid import UUID

from penstock.controller.metadata.features import OFFSETS_VERSION
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import TopicState


class OffsetTopics:
    """Looks up the topics of committed offsets in the current image."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    @property
    def stores_ids(self) -> bool:
        """Return whether new records must contain the topic id."""
        return stores_ids(self._image())

    def id_of(self, name: str) -> UUID | None:
        """Return the id of the topic with this name, or None."""
        topic = self._image().topics.by_name(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of the topic, or None if it was deleted."""
        topic = self._image().topics.by_id(topic_id)
        return None if topic is None else topic.name

    def can_return(self, topic_id: UUID) -> bool:
        """Return whether the topic was deleted but can be restored."""
        return self._image().frozen_topics.deleted_by_id(topic_id) is not None

    def owner_of_plain(self, name: str) -> UUID | None:
        """Return the topic id for an offset whose record contains none, or None if there is no such
        topic.
        """
        image = self._image()
        topic = image.topics.by_name(name)
        if topic is not None and _owns_plain(image, topic):
            return topic.topic_id
        deleted = [
            frozen
            for frozen in image.frozen_topics.deleted()
            if frozen.name == name and _owns_plain(image, frozen)
        ]
        last = max(deleted, key=lambda frozen: frozen.offset, default=None)
        return None if last is None else last.topic_id


def stores_ids(image: MetadataImage) -> bool:
    """Return whether records of committed offsets contain topic ids at this feature level."""
    return image.features.level(OFFSETS_VERSION) >= 1


def _owns_plain(image: MetadataImage, topic: TopicState | FrozenTopic) -> bool:
    return not stores_ids(image) or topic.topic_id in image.features.plain_offset_topics
