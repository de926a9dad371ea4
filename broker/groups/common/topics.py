"""The names, ids and partition counts of topics, kept in sync with the metadata image, and a view
of them that respects a client's ACLs.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from penstock.broker.groups.common.matched_topics import MatchedTopics
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage

CHECKED_PER_SLICE_COUNT: Final = 200
"""ACL checks per slice. With 10,000 ACLs and no cached results, a slice takes about 8 ms."""


class ImageTopics:
    """Implements `TopicsView`. The version increases only if a name, an id or a partition count
    changes, so groups do not check their topics again after leader changes.
    """

    def __init__(self) -> None:
        self._ids: dict[str, UUID] = {}
        self._known: dict[UUID, tuple[str, int]] = {}
        """Name and partition count."""
        self._frozen: set[UUID] = set()
        """Snapshot topics, and deleted topics that can be restored."""
        self._version = 0
        self.regexes = MatchedTopics(self._ids.keys())

    @property
    def version(self) -> int:
        return self._version

    def matching(self, expression: str) -> frozenset[str]:
        return self.regexes.of(expression)

    def id_of(self, name: str) -> UUID | None:
        return self._ids.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        known = self._known.get(topic_id)
        return None if known is None else known[0]

    def is_gone(self, topic_id: UUID) -> bool:
        return topic_id not in self._known and topic_id not in self._frozen

    def partition_count(self, topic_id: UUID) -> int:
        known = self._known.get(topic_id)
        return 0 if known is None else known[1]

    def on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the topics that changed in this batch."""
        if delta.everything:
            self.reset(image)
            return
        for topic_id in delta.topic_ids | delta.removed_topic_ids:
            topic = image.topics.by_id(topic_id)
            if topic_id in image.frozen_topics:
                self._frozen.add(topic_id)
            else:
                self._frozen.discard(topic_id)
            self._set(topic_id, None if topic is None else (topic.name, len(topic.partitions)))

    def reset(self, image: MetadataImage) -> None:
        self._frozen = {topic.topic_id for topic in image.frozen_topics}
        found = {topic.topic_id: (topic.name, len(topic.partitions)) for topic in image.topics}
        for topic_id in self._known.keys() - found.keys():
            self._set(topic_id, None)
        for topic_id, known in found.items():
            self._set(topic_id, known)

    def _set(self, topic_id: UUID, known: tuple[str, int] | None) -> None:
        before = self._known.get(topic_id)
        if before == known:
            return
        self._version += 1
        if before is not None:
            del self._known[topic_id]
            if self._ids.get(before[0]) == topic_id:
                del self._ids[before[0]]
                self.regexes.changed(before[0])
        if known is not None:
            self._known[topic_id] = known
            if known[0] not in self._ids:
                self._ids[known[0]] = topic_id
                self.regexes.changed(known[0])
            self._ids[known[0]] = topic_id


class DescribableTopics:
    """The topics as seen by the client of one heartbeat. Implements `TopicsView`.

    Regular expressions match only topics that the client may describe, as in Kafka.
    """

    def __init__(self, topics: ImageTopics, may_describe: Callable[[str], bool]) -> None:
        """may_describe: must cache its results until an ACL changes."""
        self._topics = topics
        self._may_describe = may_describe
        self.id_of = topics.id_of
        self.name_of = topics.name_of
        self.is_gone = topics.is_gone
        self.partition_count = topics.partition_count

    @property
    def version(self) -> int:
        return self._topics.version

    def matching(self, expression: str) -> frozenset[str]:
        return frozenset(filter(self._may_describe, self._topics.matching(expression)))

    def check_in_slices(self, expressions: Iterable[str]) -> Iterator[None]:
        """Check the ACLs that `matching` needs, one slice per iteration, so that the results are
        cached.
        """
        for expression in expressions:
            for index, name in enumerate(self._topics.matching(expression), 1):
                self._may_describe(name)
                if not index % CHECKED_PER_SLICE_COUNT:
                    yield
