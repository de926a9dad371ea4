"""Planted bugs: late copies of administrators' requests, and of read-only requests, change
something again.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.handlers import metadata
from penstock.broker.handlers.configs import alter_configs
from penstock.broker.handlers.topics import delete_records
from penstock.broker.requests.fetch_sessions import FetchSessions
from penstock.controller.api.messages import CreatedTopic
from penstock.controller.managers import (
    delegation_tokens,
    features,
    nodes,
    quotas,
    reassign,
    scram,
    topics,
)
from penstock.controller.managers.config_rules import TopicRules
from penstock.controller.metadata import topic_configs
from penstock.controller.metadata.acls import AclFilter, AclsImage
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.records import AclEntry, ConfigRecord, QuotaRecord

Patch = tuple[Any, str, Any]


def _log_starts_move_back() -> list[Patch]:
    real = delete_records._trim

    async def trim(node: Any, deadline: float, starts: Any) -> Any:
        for partition, start in starts:
            partition.log.data.start_offset = min(partition.log.data.start_offset, start)
        return await real(node, deadline, starts)

    return [(delete_records, "_trim", trim)]


def _late_creations_set_configs() -> list[Patch]:
    real = topics._create

    def create(image: Any, topic: Any, maker: Any, *more: Any) -> Any:
        known = image.topics.by_name(topic.name)
        if known is None:
            return real(image, topic, maker, *more)
        maker.records += [
            ConfigRecord(TOPIC_RESOURCE, topic.name, *item) for item in topic.configs.items()
        ]
        return CreatedTopic(name=topic.name, topic_id=known.topic_id)

    return [(topics, "_create", create)]


def _late_additions_of_partitions_add_more() -> list[Patch]:
    real = topics._grow

    def grow(image: Any, request: Any, maker: Any) -> None:
        present = len(image.topics.by_name(request.name).partitions)
        if request.total <= present:
            request = msgspec.structs.replace(request, total=present + 1)
        real(image, request, maker)

    return [(topics, "_grow", grow)]


def _appended_configs_repeat() -> list[Patch]:
    real = alter_configs._value

    def value(node: Any, resource: Any, config: Any) -> Any:
        if config.config_operation != alter_configs._APPEND:
            return real(node, resource, config)
        return f"{node.image.configs.get(*resource)[config.name]},{config.value}"

    # The controller removes duplicates from this list, too.
    return [(alter_configs, "_value", value), (topic_configs, "canonical", lambda _, value: value)]


def _lists_set_unconditionally() -> list[Patch]:
    real = alter_configs._changes

    def changes(resource: Any, values: Any, derived_from: Any = None) -> Any:
        return real(resource, values)

    return [(alter_configs, "_changes", changes)]


def _configs_outlive_topics() -> list[Patch]:
    return [(TopicRules, "check", lambda self, image, name, added_count: None)]


def _repeated_acls_are_kept_twice() -> list[Patch]:
    counts = Counter[Any]()
    real_add, real_remove = AclsImage.add, AclsImage.remove

    def add(self: AclsImage, record: Any) -> None:
        counts[id(self), record.acl] += 1
        real_add(self, record)

    def remove(self: AclsImage, record: Any) -> None:
        counts[id(self), record.acl] -= 1
        if not counts[id(self), record.acl]:
            real_remove(self, record)

    return [
        (AclsImage, "__contains__", lambda self, acl: False),
        (AclsImage, "add", add),
        (AclsImage, "remove", remove),
    ]


def _late_deletions_take_all_acls() -> list[Patch]:
    def matches(self: AclFilter, acl: AclEntry) -> bool:
        return self.resource_name == acl.resource_name

    return [(AclFilter, "matches", matches)]


def _late_removals_take_all_quotas() -> list[Patch]:
    real = quotas._changes

    def changes(image: Any, item: Any) -> Any:
        found = real(image, item)
        if not found and item.changes and item.changes[0].value is None:
            return [QuotaRecord(item.entity, key, None) for key in image.quotas.of(item.entity)]
        return found

    return [(quotas, "_changes", changes)]


def _late_deletions_take_all_credentials() -> list[Patch]:
    real = scram._deletion

    def deletion(image: Any, item: Any) -> Any:
        known = image.scram.of(item.user)
        if known and item.mechanism not in known:
            item = msgspec.structs.replace(item, mechanism=next(iter(known)))
        return real(image, item)

    return [(scram, "_deletion", deletion)]


def _expired_tokens_are_renewed() -> list[Patch]:
    return [(delegation_tokens, "_is_over", lambda token, now_ms: False)]


def _late_reassignments_move_again() -> list[Patch]:
    def alter(mover: Any, item: Any, *, may_resize: bool) -> None:
        partition, replicas = reassign._partition(mover.image, item.topic, item.partition), ()
        replicas = tuple(item.replicas)
        requested = replicas if partition.replicas == replicas else (partition.leader,)
        mover.to(partition, replicas, requested)

    return [(reassign, "_alter", alter)]


def _late_elections_move_again() -> list[Patch]:
    def prefer(mover: Any, item: Any) -> None:
        partition = reassign._partition(mover.image, item.topic, item.partition)
        mover.to(partition, partition.replicas, partition.replicas)

    return [(reassign, "_prefer", prefer)]


def _late_removals_take_live_brokers() -> list[Patch]:
    return [(nodes, "_check_gone", lambda image, node: None)]


def _late_registrations_replace_later_ones() -> list[Patch]:
    return [(nodes, "_check_newest", lambda image, request: None)]


def _late_upgrades_downgrade() -> list[Patch]:
    real = features._refusal

    def refusal(image: Any, update: Any, controller_id: int, **options: Any) -> Any:
        found = real(image, update, controller_id, **options)
        return None if found and found.startswith("Can't downgrade") else found

    return [(features, "_refusal", refusal)]


def _reads_create_groups() -> list[Patch]:
    real = GroupCoordinator.find

    def find(self: GroupCoordinator, group_id: str, *, create: bool, is_read: bool = False) -> Any:
        return real(self, group_id, create=create or is_read, is_read=is_read)

    return [(GroupCoordinator, "find", find)]


def _metadata_always_creates_topics() -> list[Patch]:
    def creatable(node: Any, request: Any, requested: Any) -> list[str]:
        return [topic.name for topic in requested if metadata._is_missing(node, topic.name)]

    return [(metadata, "_creatable", creatable)]


def _ids_of_fetch_sessions_are_reused() -> list[Patch]:
    real = FetchSessions._create

    def create(self: FetchSessions, call: Any, results: Any, now: float) -> int:
        self.rng.seed(0)
        return real(self, call, results, now)

    return [(FetchSessions, "_create", create)]


LATE_ADMIN_MUTANTS: Mapping[str, Callable[[], list[Patch]]] = {
    "log_starts_move_back": _log_starts_move_back,
    "late_creations_set_configs": _late_creations_set_configs,
    "late_additions_of_partitions_add_more": _late_additions_of_partitions_add_more,
    "appended_configs_repeat": _appended_configs_repeat,
    "lists_set_unconditionally": _lists_set_unconditionally,
    "configs_outlive_topics": _configs_outlive_topics,
    "repeated_acls_are_kept_twice": _repeated_acls_are_kept_twice,
    "late_deletions_take_all_acls": _late_deletions_take_all_acls,
    "late_removals_take_all_quotas": _late_removals_take_all_quotas,
    "late_deletions_take_all_credentials": _late_deletions_take_all_credentials,
    "expired_tokens_are_renewed": _expired_tokens_are_renewed,
    "late_reassignments_move_again": _late_reassignments_move_again,
    "late_elections_move_again": _late_elections_move_again,
    "late_removals_take_live_brokers": _late_removals_take_live_brokers,
    "late_registrations_replace_later_ones": _late_registrations_replace_later_ones,
    "late_upgrades_downgrade": _late_upgrades_downgrade,
    "reads_create_groups": _reads_create_groups,
    "metadata_always_creates_topics": _metadata_always_creates_topics,
    "ids_of_fetch_sessions_are_reused": _ids_of_fetch_sessions_are_reused,
}
