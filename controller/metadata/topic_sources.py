"""The source topics of a new topic, with the permissions that its creator needs on them.

Forks, snapshots and mirrors require Read on their source. Restoring a deleted topic requires Delete
or Alter on the old name, and also Read if it is restored under another name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from penstock.base.acls import Operation
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topic_configs import FORK_SOURCE, MIRROR_SOURCE, UNDELETE
from penstock.stream.format.manifest.model import SNAPSHOT_SEPARATOR

_READ: Final = ((Operation.READ,),)
_RESTORE: Final = ((Operation.DELETE, Operation.ALTER),)


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A source of a new topic. name: the topic name in ACLs. rights: for each element, one of its
    operations must be permitted.
    """

    kind: str
    name: str
    rights: tuple[tuple[Operation, ...], ...] = _READ

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def of_log(name: str) -> str:
    """Return the topic whose ACLs apply to a topic. For a frozen topic, this is its source:
    `orders` for the snapshot topic `orders@before`.
    """
    return name.partition(SNAPSHOT_SEPARATOR)[0]


def sources_of(
    image: MetadataImage, name: str, options: Mapping[str, str | None]
) -> Iterator[TopicSource]:
    """Yield the sources of a new topic. They do not have to exist. options: configs of the new
    topic.
    """
    if not options:
        return
    if forked := options.get(FORK_SOURCE):
        yield TopicSource("fork of", forked)
    if deleted := options.get(UNDELETE):
        old = _deleted_name(image, deleted)
        # Under a different name, other ACLs apply to the records.
        needed = _RESTORE if of_log(old) == name else _RESTORE + _READ
        yield TopicSource("undeleted", old, needed)
    mirrored = _mirrored_name(image, options.get(MIRROR_SOURCE) or "")
    if mirrored is not None:
        yield TopicSource("mirror of", mirrored)


def name_of(image: MetadataImage, topic_id: UUID) -> str | None:
    """Return the full name of a topic, which may be frozen, or None if it does not exist."""
    found = image.topics.by_id(topic_id)
    if found is not None:
        return found.name
    frozen = image.frozen_topics.by_id(topic_id)
    return None if frozen is None else frozen.full_name


def _deleted_name(image: MetadataImage, wanted: str) -> str:
    """Return the full name of a deleted topic. wanted: its id or its former name."""
    topic_id = _id_of(wanted)
    if topic_id is None:
        return wanted
    found = image.frozen_topics.deleted_by_id(topic_id)
    if found is not None:
        return found.full_name
    # The image may not include the deletion yet.
    live = image.topics.by_id(topic_id)
    return wanted if live is None else live.name


def _mirrored_name(image: MetadataImage, source: str) -> str | None:
    """Return the name of a mirror's source (CLUSTER_ID/TOPIC_ID) if it is in this cluster."""
    cluster_id, _, text = source.strip().partition("/")
    topic_id = _id_of(text) if cluster_id == image.cluster_id else None
    found = None if topic_id is None else image.topics.by_id(topic_id)
    return None if found is None else found.name


def _id_of(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
