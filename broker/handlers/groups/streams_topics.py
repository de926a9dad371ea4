"""Create missing internal topics of streams groups with the client's permissions (KIP-1071).

Heartbeats do not wait: the response has the status MISSING_INTERNAL_TOPICS, and a later heartbeat
finds the topics. For two heartbeat intervals after a failure, the status contains the reason for
the failure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from penstock.base.acls import Operation
from penstock.broker.groups.streams.model import MissingTopic, Status, StreamsHeartbeatResult
from penstock.broker.handlers.topics.topic_creation import create_topics
from penstock.broker.network.request import RequestContext
from penstock.broker.requests.authorization import allows_cluster, find_denied_topics
from penstock.broker.requests.node import Node
from penstock.controller.api import messages
from penstock.controller.metadata.topic_configs import is_own

log = structlog.get_logger(__name__)

_SHOWN_MAX: Final = 3
_UNSET: Final = -1


async def with_missing_topics(
    node: Node, ctx: RequestContext, result: StreamsHeartbeatResult
) -> StreamsHeartbeatResult:
    """Start creating missing internal topics. Return the result, with the reason in its status if
    they cannot be created.
    """
    missing = result.missing_topics
    if not missing:
        return result
    if not allows_cluster(node, ctx, Operation.CREATE, logs=False):
        denied = await find_denied_topics(node, ctx, Operation.CREATE, missing)
        if denied:
            return _with_detail(result, f"; Unauthorized to CREATE on topics {_listed(denied)}.")
    creations = node.streams_topics
    wanted = [missing[name] for name in creations.claim(missing)]
    if wanted:
        kept_s = 2 * result.heartbeat_interval_ms / 1_000
        creations.run(_create(node, ctx, wanted, kept_s))
    failures = creations.failures(missing)
    if not failures:
        return result
    shown = _listed(f"{name} ({reason})" for name, reason in sorted(failures.items())[:_SHOWN_MAX])
    rest = len(failures) - _SHOWN_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return _with_detail(result, f"; Creation failed: {shown}{more}.")


async def _create(
    node: Node, ctx: RequestContext, wanted: Sequence[MissingTopic], kept_s: float
) -> None:
    creations = node.streams_topics
    try:
        results = await create_topics(
            node,
            ctx,
            [_new_topic(node, topic) for topic in wanted if _own_config(topic) is None],
            timeout_s=node.config.topic_create_timeout_ms / 1_000,
        )
    finally:
        creations.release(topic.name for topic in wanted)
    reasons = {
        name: result.error_message or "" for name, result in results.items() if result.error_code
    }
    for topic in wanted:
        if (config := _own_config(topic)) is not None:
            reasons[topic.name] = f"Unknown topic config name: {config}"
    for name, reason in reasons.items():
        creations.failed(name, reason, kept_s)
    log.info("streams_topics_created", count=len(wanted) - len(reasons), failed=len(reasons))


def _own_config(topic: MissingTopic) -> str | None:
    """Return a config of the topic that Kafka does not have, or None. Such configs are rejected:
    members choose the configs of internal topics, and Penstock-specific configs could have other
    effects (for example, fork another topic).
    """
    return next((name for name, _ in topic.configs if is_own(name)), None)


def _new_topic(node: Node, topic: MissingTopic) -> messages.NewTopic:
    factor = topic.replication_factor
    return messages.NewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=node.config.default_replication_factor if factor == _UNSET else factor,
        configs=dict(topic.configs),
    )


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(texts))


def _with_detail(result: StreamsHeartbeatResult, more: str) -> StreamsHeartbeatResult:
    """Append text to the status about missing topics."""
    statuses = [
        (status, detail + more if status is Status.MISSING_INTERNAL_TOPICS else detail)
        for status, detail in result.statuses
    ]
    return replace(result, statuses=tuple(statuses))
