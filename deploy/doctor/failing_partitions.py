"""List the partitions and objects that brokers report as failing.

Invariant: pure. Reports that the metadata no longer confirms (because of a new leader or an
unreferenced object) are omitted.
"""

from collections.abc import Mapping

from penstock.controller.api.load_messages import DamagedObject, ProblemLog
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import PartitionKey, leader_of
from penstock.deploy.doctor.facts import FailingFacts, UnreadableFacts
from penstock.deploy.doctor.inventory import LostRange, lost_ranges


def failing(image: MetadataImage, problems: Mapping[int, ProblemLog]) -> list[FailingFacts]:
    """Return the partitions that cannot be opened, by name."""
    found: list[FailingFacts] = []
    for node_id, said in problems.items():
        for item in said.failing:
            topic, record = (
                image.topics.by_id(item.topic_id),
                image.topics.partition(PartitionKey(item.topic_id, item.partition)),
            )
            if topic is not None and record is not None and leader_of(record).node_id == node_id:
                found.append(
                    FailingFacts(
                        topic.name, item.partition, node_id, item.tries, item.for_ms, item.error
                    )
                )
    return sorted(found, key=lambda item: (item.topic, item.partition))


def unreadable(image: MetadataImage, problems: Mapping[int, ProblemLog]) -> list[UnreadableFacts]:
    """Return the objects that a broker could not read, by key, with their ranges."""
    said: dict[str, dict[int, DamagedObject]] = {}
    for node_id, of_broker in problems.items():
        for item in of_broker.damaged:
            said.setdefault(item.key, {})[node_id] = item
    ids = (
        {state.key: state.object_id for state in image.objects if state.key in said} if said else {}
    )
    found: list[UnreadableFacts] = []
    for key, object_id in sorted(ids.items()):
        ranges = tuple(map(_named, lost_ranges(image, [object_id])))
        if ranges:
            items = said[key]
            one, reads = next(iter(items.values())), sum(item.reads for item in items.values())
            found.append(
                UnreadableFacts(key, one.kind, tuple(sorted(items)), reads, one.error, ranges)
            )
    return found


def _named(part: LostRange) -> str:
    kind = "" if part.kind == "data" else f" ({part.kind} stream)"
    return f"{part.topic}-{part.partition}{kind} [{part.start_offset}, {part.end_offset})"
