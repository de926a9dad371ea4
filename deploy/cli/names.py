"""Request the names for shell completion."""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.controller.metadata import configs
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


def _configs(kind: int, names: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return a function that requests the configs of the first resource with one of the names."""

    def requested(bootstrap: str) -> list[str]:
        from penstock.deploy.clients.configs import describe

        first = names(bootstrap)[:1]
        return [view.name for name in first for view in describe(bootstrap, (kind, name))]

    return requested


KINDS: Final[Mapping[str, Callable[[str], list[str]]]] = {
    "topics": _topics,
    "partitions": _partitions,
    "deleted topics": _deleted_topics,
    "brokers": _brokers,
    "groups": _groups,
    "snapshots": _snapshots,
    "client metrics": _client_metrics,
    "topic configs": _configs(configs.TOPIC_RESOURCE, _topics),
    "broker configs": _configs(configs.BROKER_RESOURCE, _brokers),
    "group configs": _configs(configs.GROUP_RESOURCE, lambda at: _groups(at) or ["any"]),
    "broker loggers": _configs(configs.BROKER_LOGGER_RESOURCE, _brokers),
    "client metrics configs": _configs(configs.CLIENT_METRICS_RESOURCE, lambda _: ["any"]),
}
