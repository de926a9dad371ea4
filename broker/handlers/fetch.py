"""Fetch: the hot path of reading. Data in the log cache, and data that was read ahead, is returned
immediately, without a task. Cold reads and waits run in a task.

Invariants: a response contains nothing at or above the high watermark; for committed reads, nothing
at or above the last stable offset, and it lists every aborted transaction in its range. Nothing is
read without a session. Only a broker that leads alone returns OFFSET_OUT_OF_RANGE, because the
client then resets its offset (`broker.handlers.lease`). A response is sent as soon as min_bytes are
available or a partition has an error, otherwise at max_wait. A damaged object fails only the
fetches that begin in it; intact data before it is returned. A partition that another broker leads
is read only for a client in the rack of this broker (KIP-392) or a debugging consumer, and only as
far as this broker knows that it was acknowledged: what is in objects, and the tail that the leader
reports (`broker.tail`). If it cannot be read, the client goes back to the leader, which serves it
for a minute. Replicas get NOT_LEADER_OR_FOLLOWER, because there are none; live brokers that ask as
such get a report of the tail (`broker.handlers.tail_fetch`). The first partition with data
returns at least one whole batch (KIP-74); everything else stays within the limits. There is no
polling: high watermarks wake parked fetches.
Limits: `fetch.max.bytes` per response, `PartitionManager.cold_reads` for the cold bytes of all
connections.
Must not: keep client state between requests: `broker.handlers.fetch_sessions` does. Requests that
ask for the same share answers: `broker.handlers.fetch_coalescing`.

Source: Kafka `KafkaApis.handleFetchRequest`, `ReplicaManager.readFromLog`, `DelayedFetch`.
"""

from collections.abc import Awaitable
from typing import Final

from penstock.broker.handlers.fetch_call import FetchCall
from penstock.broker.handlers.fetch_coalescing import SameAnswer, SameKey, SameWait, same_key
from penstock.broker.handlers.long_requests import decoded
from penstock.broker.handlers.node import Node
from penstock.broker.handlers.tail_fetch import TailFetch, is_of_follower
from penstock.broker.network.request import RequestContext, Response
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.fetch import FetchPartitionResult, encode_fetch_response
from penstock.protocol.gen.fetch import FetchRequest, decode_request
from penstock.protocol.topic_key import TopicKey

_ISOLATION_LEVELS: Final = frozenset({0, 1})
_FIRST_WITHOUT_TOPICS: Final = 13
"""The first version in which an error of the whole request stands alone."""


def handle_fetch(node: Node, ctx: RequestContext) -> Response | Awaitable[Response]:
    """See `broker.handlers.node.Handler`. Raises WireError."""
    same, key = node.same_fetches, same_key(ctx)
    if key is not None:
        found = same.answer(key)
        if found is not None and found.suits(ctx):
            return found.to(ctx)
        if found is None and same.will_wait(key):
            return _follow(node, ctx, key)
        if not same.may_recur(key):
            key = None
    call = _begin(node, ctx, key)
    if not isinstance(call, FetchCall):
        return call
    if call.is_long:
        return call.answer_in_slices()
    call.evaluate()
    if call.is_complete:
        return call.answer()
    if call.key is not None and call.is_shared:
        same.note(call.key, None)
    return call.finish()


def _begin(node: Node, ctx: RequestContext, key: SameKey | None) -> Response | FetchCall:
    """Decode the request. Returns the answer if its session refuses it. Raises WireError."""
    request = decoded(ctx, decode_request)
    if request.isolation_level not in _ISOLATION_LEVELS:
        return _failed(ctx, request)
    session_call = node.fetch_sessions.begin(request, ctx.api_version, ctx.received_at)
    if session_call.error_code:
        return encode_fetch_response(
            ctx.correlation_id, ctx.api_version, [], error_code=session_call.error_code
        )
    if is_of_follower(node, ctx, request):
        return TailFetch(node, ctx, request, session_call)
    if session_call.session is not None or session_call.creates or request.session_id:
        key = None
    return FetchCall(node, ctx, request, session_call, key)


def _failed(ctx: RequestContext, request: FetchRequest) -> Response:
    """Refuse the whole request, as Kafka does if it cannot read it."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    failed: list[tuple[TopicKey, list[FetchPartitionResult]]] = []
    if ctx.api_version < _FIRST_WITHOUT_TOPICS:
        failed = [
            (topic.topic, [FetchPartitionResult(part.partition, code) for part in topic.partitions])
            for topic in request.topics
        ]
    return encode_fetch_response(ctx.correlation_id, ctx.api_version, failed, error_code=code)


async def _follow(node: Node, ctx: RequestContext, key: SameKey) -> Response:
    """Wait for the answer of a fetch that asks for the same, or else answer as any other."""
    same = node.same_fetches
    wait, leads = same.wait(key), None
    if wait is None:
        found = same.answer(key)
        if found is not None and found.suits(ctx):
            return found.to(ctx)
    elif wait.call.serves(ctx):
        heard = await wait.follow()
        if isinstance(heard, SameAnswer) and heard.call.is_valid():
            return heard.to(ctx)
        leads = heard if isinstance(heard, SameWait) else None
    try:
        call = _begin(node, ctx, key)
        assert isinstance(call, FetchCall), "requests with a session are not shared"
        call.evaluate()
        return await call.finish(leads)
    finally:
        if leads is not None:
            leads.pass_on()
