"""Controller mutation quota (KIP-599): identify the client that creates or deletes partitions to
the controller, and throttle the client.

The controller enforces the quota for all brokers. Clients that support the quota receive an error
for each topic that exceeds it; older ones are throttled instead.
"""

from typing import Final

from penstock.broker.network.request import RequestContext
from penstock.broker.quotas.clients import CLIENT_ID_CHARS_MAX
from penstock.controller.api.messages import ItemResults, QuotaClient, TopicsCreated
from penstock.protocol import apis

_STRICT_FROM: Final = {
    apis.CREATE_TOPICS.key: 6,
    apis.DELETE_TOPICS.key: 5,
    apis.CREATE_PARTITIONS.key: 3,
    apis.METADATA.key: 0,
    apis.STREAMS_GROUP_HEARTBEAT.key: 0,
}
"""The first version whose clients support the error. Metadata does not return it, because clients
retry when a topic is missing, as with Kafka. Streams heartbeats report it in a status.
"""


def quota_client(ctx: RequestContext) -> QuotaClient | None:
    """Return the client to which the quota applies, or None."""
    if ctx.quota is None or not ctx.quota.has_mutation_rate:
        return None
    return QuotaClient(
        user=ctx.connection.principal.name,
        client_id=(ctx.client_id or "")[:CLIENT_ID_CHARS_MAX],
        is_strict=ctx.api_version >= _STRICT_FROM[ctx.api_key],
    )


def set_throttle_time(ctx: RequestContext, response: TopicsCreated | ItemResults) -> None:
    """Throttle the client for as long as the controller requests."""
    if ctx.quota is not None:
        ctx.quota.changed(response.throttle_ms)
