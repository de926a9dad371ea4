"""Change the dynamic configs of topics, brokers, groups and client metrics subscriptions. The
changes of each resource are either all made or all rejected.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import UNSET

from penstock.controller.api.messages import (
    AlterConfigs,
    ConfigChange,
    ItemResult,
    ItemResults,
    Status,
)
from penstock.controller.managers.config_rules import RULES
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ConfigRecord, Record

CHANGES_MAX = 10_000


def alter_configs(image: MetadataImage, request: AlterConfigs) -> Result[ItemResults]:
    """Return one result per change, in order, followed by one per replaced resource. All results of
    one resource are the same. Setting the current value creates no record.
    """
    replaced = [(TOPIC_RESOURCE, name) for name in request.replaced_topics]
    replaced += [(item.resource_type, item.resource_name) for item in request.replaced]
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
    results: dict[tuple[int, str], ItemResult] = {}
    added: Counter[int] = Counter()
    for resource, changes in resources.items():
        try:
            altered = _alter(
                image,
                resource,
                changes,
                added_count=added[resource[0]],
                is_replaced=resource in replaced_set,
            )
        except Refused as refused:
            results[resource] = ItemResult(status=refused.status, detail=refused.detail)
            continue
        records += altered
        results[resource] = ItemResult()
        if altered and not image.configs.get(*resource):
            added[resource[0]] += 1
    changed = [(change.resource_type, change.resource_name) for change in request.changes]
    items = [results[resource] for resource in (*changed, *replaced)]
    return Result([] if request.validate_only else records, value=ItemResults(items=items))


def _alter(
    image: MetadataImage,
    resource: tuple[int, str],
    changes: list[ConfigChange],
    *,
    added_count: int,
    is_replaced: bool,
) -> list[Record]:
    """Return the records for one resource. added_count: see `Rules.check`. is_replaced: whether
    configs that the request does not contain are reset, except for the source configs of forks and
    mirrors. Raises Refused.
    """
    resource_type, name = resource
    rules = RULES.get(resource_type)
    if rules is None:
        allowed = "2 (topic), 4 (broker), 16 (client metrics) and 32 (group)"
        detail = f"resource type {resource_type} has no configs that can be altered; only {allowed}"
        raise Refused(Status.INVALID_REQUEST, detail)
    rules.check(image, name, added_count)
    if len({change.name for change in changes}) != len(changes):
        raise Refused(Status.DUPLICATE_IN_REQUEST, f"a config of {name[:260]!r} is altered twice")
    present = image.configs.get(resource_type, name)
    if is_replaced:
        changes = [*changes, *_removals(resource, present, changes, rules.kept)]
    records: list[Record] = []
    changed = dict(present)
    for change in changes:
        before = present.get(change.name)
        if change.derived_from is not UNSET and change.derived_from != before:
            detail = f"config {change.name} of {name[:260]!r} has changed meanwhile: try again"
            raise Refused(Status.CONFIG_CHANGED, detail)
        value = rules.value(name, change.name, change.value, before)
        if value is None:
            changed.pop(change.name, None)
        else:
            changed[change.name] = value
        if before != value:
            records.append(ConfigRecord(resource_type, name, change.name, value))
    if found := rules.conflict(changed):
        raise Refused(Status.INVALID_CONFIG, found)
    return records


def _removals(
    resource: tuple[int, str],
    present: Mapping[str, str],
    changes: list[ConfigChange],
    kept: frozenset[str],
) -> list[ConfigChange]:
    named = {change.name for change in changes} | kept
    return [
        ConfigChange(resource_type=resource[0], resource_name=resource[1], name=config, value=None)
        for config in present
        if config not in named
    ]
