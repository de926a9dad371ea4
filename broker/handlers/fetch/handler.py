"""Fetch: the hot read path. Cached and read-ahead data is returned immediately, without a task;
cold reads and waits run in a task. An advancing high watermark wakes parked fetches, so no polling
is needed. `FetchCall` describes the rules, `broker.requests.fetch_sessions` stores state between
requests, and identical requests share responses (`broker.requests.fetch_coalescing`).
"""

from collections.abc import Awaitable
from typing import Final

from penstock.broker.handlers.fetch.fetch_call import FetchCall
from penstock.broker.handlers.fetch.tail_fetch import TailFetch, is_of_follower
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.fetch_coalescing import SameKey, SameWait, SharedResponse, same_key
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.fetch import FetchPartitionResult, encode_fetch_response
from penstock.protocol.gen.fetch import FetchRequest, decode_request
from penstock.protocol.topic_key import TopicKey

_ISOLATION_LEVELS: Final = frozenset({0, 1})
_FIRST_WITHOUT_TOPICS: Final = 13
"""The first version whose responses contain no topics after a top-level error."""


def handle_fetch(node: Node, ctx: RequestContext) -> Response | Awaitable[Response]:
    """See `broker.requests.node.Handler`. Raises WireError."""
    same, key = node.coalesced_fetches, same_key(ctx)
    if key is not None:
        found = same.response(key)
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
        return call.respond_in_slices()
    call.evaluate()
    if call.is_complete:
        return call.respond()
    if call.key is not None and call.is_shared:
        same.note(call.key, None)
    return call.finish()


def _begin(node: Node, ctx: RequestContext, key: SameKey | None) -> Response | FetchCall:
    """Decode the request. Return a response instead of a call if the session rejects the request.
    Raises WireError.
    """
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
    """Reject the whole request, as Kafka does if it cannot decode it."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    failed: list[tuple[TopicKey, list[FetchPartitionResult]]] = []
    if ctx.api_version < _FIRST_WITHOUT_TOPICS:
        failed = [
            (topic.topic, [FetchPartitionResult(part.partition, code) for part in topic.partitions])
            for topic in request.topics
        ]
    return encode_fetch_response(ctx.correlation_id, ctx.api_version, failed, error_code=code)


async def _follow(node: Node, ctx: RequestContext, key: SameKey) -> Response:
    """Wait for the response of an identical fetch, or handle the request separately if it cannot be
    shared.
    """
    same = node.coalesced_fetches
    wait, leads = same.wait(key), None
    if wait is None:
        found = same.response(key)
        if found is not None and found.suits(ctx):
            return found.to(ctx)
    elif wait.call.serves(ctx):
        heard = await wait.follow()
        if isinstance(heard, SharedResponse) and heard.call.is_valid():
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
