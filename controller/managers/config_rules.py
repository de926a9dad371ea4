"""Validate configs by resource type: topics, brokers, groups and client metrics subscriptions.

Brokers check their own settings before they send the request. The controller only limits the length
of names and values.
"""

import re
from collections.abc import Mapping
from typing import Final, Protocol

from penstock.base.ids import NodeId
from penstock.controller.api.messages import Status
from penstock.controller.managers.result import Refused
from penstock.controller.managers.topics import check_topic_name
from penstock.controller.metadata import client_metrics, group_configs, topic_configs
from penstock.controller.metadata.configs import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS, config_problem

GROUPS_MAX: Final = 20_000
"""Maximum number of groups with configs. A group does not have to exist to have configs, so nothing
else limits their number.
"""

BROKER_CONFIGS_MAX: Final = 500
"""Maximum number of configs of one broker."""

_NODE_ID: Final = re.compile(r"[0-9]{1,10}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
NOTHING: Final[frozenset[str]] = frozenset()


class Rules(Protocol):
    """The config rules of one resource type."""

    kept: frozenset[str]
    """Configs that are kept when all other configs of a resource are replaced."""

    def check(self, image: MetadataImage, name: str, added_count: int) -> None:
        """Check that the resource may have configs. Raises Refused.

        added_count: number of resources of this type to which the request adds their first configs.
        """
        ...

    def value(self, resource: str, name: str, value: str | None, present: str | None) -> str | None:
        """Return the value to store, or None for the default. As in Kafka, a config that does not
        exist can be removed. Raises Refused.

        present: the stored value, or None.
        """
        ...

    def conflict(self, configs: Mapping[str, str]) -> str:
        """Return the reason why the configs are incompatible, or "" if they are compatible."""
        ...


class TopicRules:
    kept = frozenset(
        {topic_configs.FORK_SOURCE, topic_configs.MIRROR_SOURCE, topic_configs.MIRROR_FINISHED}
    )

    def check(self, image: MetadataImage, name: str, added_count: int) -> None:
        check_topic_name(name)
        if image.topics.by_name(name) is None:
            raise Refused(Status.UNKNOWN_TOPIC, f"there is no topic {name[:260]!r}")

    def value(self, resource: str, name: str, value: str | None, present: str | None) -> str | None:
        stored = None if value is None else _checked_topic_config(name, value)
        if resource in INTERNAL_TOPICS and name in topic_configs.TOPIC_CONFIGS:
            used = topic_configs.TOPIC_CONFIGS[name].default if stored is None else stored
            if found := config_problem(name, used):
                raise Refused(Status.INVALID_CONFIG, found)
        if name == topic_configs.FORK_SOURCE and stored != present:
            detail = (
                f"config {name} cannot be changed: it is set when a topic is created, and records"
                " the origin of its log"
            )
            raise Refused(Status.INVALID_CONFIG, detail)
        return stored

    def conflict(self, configs: Mapping[str, str]) -> str:
        return topic_configs.conflict(configs)


def _checked_topic_config(name: str, value: str) -> str:
    if found := topic_configs.problem(name, value):
        raise Refused(Status.INVALID_CONFIG, found)
    return topic_configs.canonical(name, value)


class GroupRules:
    kept = NOTHING

    def check(self, image: MetadataImage, name: str, added_count: int) -> None:
        if not name:
            raise Refused(Status.INVALID_REQUEST, "Default group resources are not allowed.")
        if len(name) > group_configs.GROUP_NAME_CHARS_MAX:
            detail = (
                f"the name of the group has {len(name)} characters; at most"
                f" {group_configs.GROUP_NAME_CHARS_MAX} are allowed"
            )
            raise Refused(Status.INVALID_REQUEST, detail)
        count = image.configs.count(GROUP_RESOURCE) + added_count
        if image.configs.group(name) or count < GROUPS_MAX:
            return
        detail = f"{GROUPS_MAX} groups have configs already: delete the configs of some first"
        raise Refused(Status.INVALID_CONFIG, detail)

    def value(self, resource: str, name: str, value: str | None, present: str | None) -> str | None:
        if value is None:
            return None
        if found := group_configs.problem(name, value):
            raise Refused(Status.INVALID_CONFIG, found)
        return group_configs.canonical(name, value)

    def conflict(self, configs: Mapping[str, str]) -> str:
        return group_configs.conflict(configs)


class ClientMetricsRules:
    kept = NOTHING

    def check(self, image: MetadataImage, name: str, added_count: int) -> None:
        if not name:
            raise Refused(Status.INVALID_REQUEST, "Subscription name can't be empty")
        if len(name) > client_metrics.NAME_CHARS_MAX:
            detail = (
                f"the name of the subscription has {len(name)} characters; at most"
                f" {client_metrics.NAME_CHARS_MAX} are allowed"
            )
            raise Refused(Status.INVALID_REQUEST, detail)
        limit = client_metrics.SUBSCRIPTIONS_MAX
        count = image.configs.count(CLIENT_METRICS_RESOURCE) + added_count
        if count >= limit and not image.configs.client_metrics(name):
            detail = (
                f"there are {limit} client metrics subscriptions, the maximum: delete some first"
            )
            raise Refused(Status.INVALID_CONFIG, detail)

    def value(self, resource: str, name: str, value: str | None, present: str | None) -> str | None:
        if value is None:
            return None
        try:
            return client_metrics.canonical(name, value)
        except client_metrics.RequestInvalid as error:
            raise Refused(Status.INVALID_REQUEST, str(error)) from error
        except client_metrics.ConfigInvalid as error:
            raise Refused(Status.INVALID_CONFIG, str(error)) from error

    def conflict(self, configs: Mapping[str, str]) -> str:
        return ""


class BrokerRules:
    kept = NOTHING

    def check(self, image: MetadataImage, name: str, added_count: int) -> None:
        if not name:
            return
        if _NODE_ID.fullmatch(name) is None:
            detail = f"Node id must be an integer, but it is: {name[:100]}"
            raise Refused(Status.INVALID_REQUEST, detail)
        if str(int(name)) != name or image.nodes.get(NodeId(int(name))) is None:
            raise Refused(Status.INVALID_REQUEST, f"there is no broker {name}")

    def value(self, resource: str, name: str, value: str | None, present: str | None) -> str | None:
        if value is None:
            return None
        if _NAME.fullmatch(name) is None:
            detail = (
                f"config {name[:100]!r}: a name has up to 255 letters, digits, dots, hyphens and"
                " underscores"
            )
            raise Refused(Status.INVALID_CONFIG, detail)
        if len(value) > topic_configs.VALUE_CHARS_MAX:
            limit = topic_configs.VALUE_CHARS_MAX
            detail = f"config {name}: the value has more than {limit} characters"
            raise Refused(Status.INVALID_CONFIG, detail)
        return value

    def conflict(self, configs: Mapping[str, str]) -> str:
        if len(configs) > BROKER_CONFIGS_MAX:
            return f"a broker can have {BROKER_CONFIGS_MAX} configs, not {len(configs)}"
        return ""


RULES: Final[Mapping[int, Rules]] = {
    TOPIC_RESOURCE: TopicRules(),
    BROKER_RESOURCE: BrokerRules(),
    CLIENT_METRICS_RESOURCE: ClientMetricsRules(),
    GROUP_RESOURCE: GroupRules(),
}
