"""Change dynamic configs of topics. Brokers have none: theirs come from their configuration file.

Invariant: Only values that `topic_configs` accepts get into the image. Of one resource, either all
changes are made or none. Source: KRaft `ConfigurationControlManager`.
"""

from collections.abc import Mapping

from controller.api.messages import (
    AlterConfigs,
    ConfigChange,
    ItemResult,
    ItemResults,
    Status,
)
from controller.managers.result import Refused, Result
from controller.managers.topics import check_topic_name
from controller.metadata import topic_configs
from controller.metadata.configs import TOPIC_RESOURCE
from controller.metadata.image import MetadataImage
from controller.metadata.internal_topics import INTERNAL_TOPICS, config_problem
from controller.metadata.records import ConfigRecord, Record

CHANGES_MAX = 10_000


def alter_configs(image: MetadataImage, request: AlterConfigs) -> Result[ItemResults]:
    """Return one answer per change, in order, then one per replaced topic; those of one resource
    are equal. Setting the current value makes no record.
    """
    replaced = [(TOPIC_RESOURCE, name) for name in request.replaced_topics]
    change_count = len(request.changes) + len(replaced)
    if change_count > CHANGES_MAX:
        return Result(
            status=Status.INVALID_REQUEST,
            detail=f"{change_count} changes; at most {CHANGES_MAX} are allowed: split them",
        )
    resources: dict[tuple[int, str], list[ConfigChange]] = {resource: [] for resource in replaced}
    for change in request.changes:
        resources.setdefault((change.resource_type, change.resource_name), []).append(change)
    replaced_set = set(replaced)
    records: list[Record] = []
    answers: dict[tuple[int, str], ItemResult] = {}
    for resource, changes in resources.items():
        try:
            records += _alter(image, resource, changes, is_replaced=resource in replaced_set)
            answers[resource] = ItemResult()
        except Refused as refused:
            answers[resource] = ItemResult(status=refused.status, detail=refused.detail)
    changed = [(change.resource_type, change.resource_name) for change in request.changes]
    items = [answers[resource] for resource in (*changed, *replaced)]
    return Result([] if request.validate_only else records, value=ItemResults(items=items))


def _alter(
    image: MetadataImage,
    resource: tuple[int, str],
    changes: list[ConfigChange],
    *,
    is_replaced: bool,
) -> list[Record]:
    """Return the records of one resource. is_replaced: configs without a change get their defaults;
    only the source of a fork stays. Raises Refused.
    """
    resource_type, name = resource
    if resource_type != TOPIC_RESOURCE:
        detail = (
            f"only topics (resource type {TOPIC_RESOURCE}) have dynamic configs; brokers are"
            " configured by their file and restarted"
        )
        raise Refused(Status.INVALID_CONFIG, detail)
    check_topic_name(name)
    if image.topics.by_name(name) is None:
        raise Refused(Status.UNKNOWN_TOPIC, f"there is no topic {name[:260]!r}")
    if len({change.name for change in changes}) != len(changes):
        raise Refused(Status.DUPLICATE_IN_REQUEST, f"a config of topic {name!r} is changed twice")
    present = image.configs.topic(name)
    if is_replaced:
        changes = [*changes, *_removals(name, present, changes)]
    records: list[Record] = []
    changed = dict(present)
    for change in changes:
        value = _value(name, change)
        if change.name == topic_configs.FORK_SOURCE and value != present.get(change.name):
            detail = (
                f"config {change.name} cannot be changed: it is set when a topic is created, and"
                " says where its log began"
            )
            raise Refused(Status.INVALID_CONFIG, detail)
        if value is None:
            changed.pop(change.name, None)
        else:
            changed[change.name] = value
        if present.get(change.name) != value:
            records.append(ConfigRecord(resource_type, name, change.name, value))
    if found := topic_configs.conflict(changed):
        raise Refused(Status.INVALID_CONFIG, found)
    return records


def _removals(
    topic: str, present: Mapping[str, str], changes: list[ConfigChange]
) -> list[ConfigChange]:
    named = {change.name for change in changes} | {topic_configs.FORK_SOURCE}
    return [
        ConfigChange(resource_type=TOPIC_RESOURCE, resource_name=topic, name=config, value=None)
        for config in present
        if config not in named
    ]


def _value(topic: str, change: ConfigChange) -> str | None:
    """Return the value to store, None for the default. As in Kafka, a config that does not exist
    can be removed. Raises Refused.
    """
    if change.value is not None:
        if found := topic_configs.problem(change.name, change.value):
            raise Refused(Status.INVALID_CONFIG, found)
        value = topic_configs.canonical(change.name, change.value)
    elif change.name in topic_configs.TOPIC_CONFIGS:
        value = topic_configs.TOPIC_CONFIGS[change.name].default
    else:
        return None
    if topic in INTERNAL_TOPICS and (found := config_problem(change.name, value)):
        raise Refused(Status.INVALID_CONFIG, found)
    return None if change.value is None else value
