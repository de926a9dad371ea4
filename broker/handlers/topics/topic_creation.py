"""Create topics for a client. All requests that create topics use `create_topics`, which checks the
client's permissions and writes the audit log.

After the response, this broker's metadata contains the topics (read your writes).
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.broker.errors import ErrorCode, code_of, code_of_status
from penstock.broker.handlers.configs import describe_configs as configs
from penstock.broker.handlers.topics.mutation_quota import quota_client, set_throttle_time
from penstock.broker.handlers.topics.topic_rights import denied_creations
from penstock.broker.network.request import RequestContext
from penstock.broker.requests.authorization import record_change, requester_of
from penstock.broker.requests.node import Node
from penstock.broker.requests.topic_change_queue import chunks
from penstock.broker.requests.yielding import listed, sliced
from penstock.controller.api import messages
from penstock.controller.api.errors import ControllerError
from penstock.controller.metadata.topic_configs import UNDELETE, canonical
from penstock.controller.metadata.topic_sources import sources_of
from penstock.protocol.gen.create_topics import CreatableTopicConfigs, CreatableTopicResult
from penstock.stream.format.manifest.model import SNAPSHOT_SEPARATOR

DENIED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
TOO_MANY: Final = (
    f"more than {messages.PARTITIONS_PER_REQUEST_MAX} partitions in one request: make several"
    " requests"
)
_Created = CreatableTopicResult


async def create_topics(
    node: Node,
    ctx: RequestContext,
    wanted: Sequence[messages.NewTopic],
    *,
    validate_only: bool = False,
    mutes: bool = True,
    timeout_s: float,
) -> dict[str, _Created]:
    """Create the topics that the client may create. Return a result for each, by name.

    mutes: whether to throttle a client that exceeds its quota.
    """
    denied = await denied_creations(node, ctx, wanted)
    code, message = DENIED
    results = {
        name: _Created(name, error_code=code, error_message=message, configs=None)
        for name in denied
    }
    allowed = [topic for topic in wanted if topic.name not in denied] if denied else wanted
    # Collect the names first, because an undeleted topic has a new name after its creation.
    audited = {
        topic.name: text async for topic in sliced(allowed) if (text := _sources_text(node, topic))
    }
    results |= await _create_in_chunks(
        node, ctx, allowed, validate_only=validate_only, mutes=mutes, timeout_s=timeout_s
    )
    if not validate_only:
        created = await listed(
            audited.get(topic.name, topic.name)
            for topic in allowed
            if not results[topic.name].error_code
        )
        record_change(node, ctx, "topics_created", created)
    return results


def _sources_text(node: Node, topic: messages.NewTopic) -> str:
    """Return the topic with its sources, for the audit log, or "" if it has no sources."""
    sources = ", ".join(map(str, sources_of(node.image, topic.name, topic.configs)))
    return f"{topic.name} ({sources})" if sources else ""


async def _create_in_chunks(
    node: Node,
    ctx: RequestContext,
    wanted: Sequence[messages.NewTopic],
    *,
    validate_only: bool,
    mutes: bool,
    timeout_s: float,
) -> dict[str, _Created]:
    """Create the topics in chunks, so that the controller can handle other requests in between."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    results: dict[str, _Created] = {}
    partition_count = 0
    async for chunk in sliced(_topic_chunks(wanted)):
        chunk_count = sum(map(_partition_count, chunk))
        partition_count += chunk_count
        if results and partition_count > messages.PARTITIONS_PER_REQUEST_MAX:
            results |= {topic.name: _too_many(topic) for topic in chunk}
            continue
        request = messages.CreateTopics(
            topics=chunk,
            validate_only=validate_only,
            client=quota_client(ctx),
            forwarded_for=requester_of(node, ctx),
        )
        try:
            async with node.partition_turns.turn(chunk_count, deadline) as left_s:
                created = await node.client.create_topics(request, timeout_s=left_s)
        except (ControllerError, TimeoutError) as error:
            code, detail = code_of(error), str(error)
            results |= {
                topic.name: _Created(topic.name, error_code=code, error_message=detail)
                for topic in chunk
            }
            continue
        if mutes:
            set_throttle_time(ctx, created)
        requested = {topic.name: topic for topic in chunk}
        async for topic in sliced(created.topics):
            results[topic.name] = _created(node, topic, requested[topic.name])
    return results


def _topic_chunks(wanted: Sequence[messages.NewTopic]) -> Iterator[list[messages.NewTopic]]:
    """Yield the topics in chunks. The first one contains all snapshot topics, because they are
    created atomically.
    """
    frozen = [topic for topic in wanted if is_frozen(topic.name)]
    if frozen:
        yield frozen
    yield from chunks((topic for topic in wanted if not is_frozen(topic.name)), _partition_count)


def _partition_count(topic: messages.NewTopic) -> int:
    return max(1, topic.partitions if topic.assignment is None else len(topic.assignment))


def _too_many(topic: messages.NewTopic) -> _Created:
    return _Created(topic.name, error_code=ErrorCode.POLICY_VIOLATION, error_message=TOO_MANY)


def _created(node: Node, topic: messages.CreatedTopic, requested: messages.NewTopic) -> _Created:
    if topic.status is not messages.Status.OK:
        return _Created(
            topic.name,
            error_code=code_of_status(topic.status),
            error_message=topic.detail or None,
            configs=None,
        )
    if UNDELETE in requested.configs:
        overrides = _configs_of(node, topic)
    else:
        overrides = {
            name: canonical(name, value)
            for name, value in requested.configs.items()
            if value is not None
        }
    return _Created(
        topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfigs(
                entry.name, entry.value, entry.is_read_only, entry.source, entry.is_sensitive
            )
            for entry in configs.topic_entries(node, overrides)
        ],
    )


def _configs_of(node: Node, topic: messages.CreatedTopic) -> dict[str, str]:
    """Return the configs of a restored topic, or of a topic that would be restored
    (validate_only).
    """
    found = None if topic.topic_id is None else node.image.frozen_topics.by_id(topic.topic_id)
    return dict(node.image.configs.topic(topic.name) if found is None else found.configs)


def is_frozen(name: str) -> bool:
    """Return whether this is the name of a snapshot topic or a deleted topic."""
    return SNAPSHOT_SEPARATOR in name
