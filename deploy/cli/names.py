"""Request the names for shell completion."""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.deploy.clients.brokers import Brokers


def _topics(bootstrap: str) -> list[str]:
    with Brokers(bootstrap) as brokers:
        return [topic.name or "" for topic in brokers.metadata(None).topics]


def _partitions(bootstrap: str) -> list[str]:
    with Brokers(bootstrap) as brokers:
        return [
            f"{topic.name}-{part.partition_index}"
            for topic in brokers.metadata(None).topics
            for part in topic.partitions
        ]


def _deleted_topics(bootstrap: str) -> list[str]:
    from penstock.deploy.clients.frozen_topics import deleted_topics

    return list({topic.name for topic in deleted_topics(bootstrap)})


def _brokers(bootstrap: str) -> list[str]:
    with Brokers(bootstrap) as brokers:
        return [str(broker.node_id) for broker in brokers.metadata([]).brokers]


def _groups(bootstrap: str) -> list[str]:
    from penstock.deploy.admin.groups.admin import listed_groups

    with Brokers(bootstrap) as brokers:
        return [group.group for group in listed_groups(brokers).groups]


def _snapshots(bootstrap: str) -> list[str]:
    from penstock.deploy.clients.frozen_topics import frozen_topics

    return list({topic.snapshot for topic in frozen_topics(bootstrap) if topic.snapshot})


def _client_metrics(bootstrap: str) -> list[str]:
    from penstock.deploy.clients.configs import resources

    return [view.name for view in resources(bootstrap) if view.type == "client-metrics"]


def _topic_configs(bootstrap: str) -> list[str]:
    from penstock.controller.metadata.configs import TOPIC_RESOURCE

    topics = _topics(bootstrap)
    return _configs(bootstrap, TOPIC_RESOURCE, topics[:1])


def _broker_configs(bootstrap: str) -> list[str]:
    from penstock.controller.metadata.configs import BROKER_RESOURCE

    return _configs(bootstrap, BROKER_RESOURCE, _brokers(bootstrap)[:1])


def _group_configs(bootstrap: str) -> list[str]:
    from penstock.controller.metadata.configs import GROUP_RESOURCE

    return _configs(bootstrap, GROUP_RESOURCE, _groups(bootstrap)[:1] or ["any"])


def _broker_loggers(bootstrap: str) -> list[str]:
    from penstock.controller.metadata.configs import BROKER_LOGGER_RESOURCE

    return _configs(bootstrap, BROKER_LOGGER_RESOURCE, _brokers(bootstrap)[:1])


def _client_metrics_configs(bootstrap: str) -> list[str]:
    from penstock.controller.metadata.configs import CLIENT_METRICS_RESOURCE

    return _configs(bootstrap, CLIENT_METRICS_RESOURCE, ["any"])


def _configs(bootstrap: str, kind: int, names: list[str]) -> list[str]:
    from penstock.deploy.clients.configs import describe

    return [view.name for name in names for view in describe(bootstrap, (kind, name))]


KINDS: Final[Mapping[str, Callable[[str], list[str]]]] = {
    "topics": _topics,
    "partitions": _partitions,
    "deleted topics": _deleted_topics,
    "brokers": _brokers,
    "groups": _groups,
    "snapshots": _snapshots,
    "client metrics": _client_metrics,
    "topic configs": _topic_configs,
    "broker configs": _broker_configs,
    "group configs": _group_configs,
    "broker loggers": _broker_loggers,
    "client metrics configs": _client_metrics_configs,
}
