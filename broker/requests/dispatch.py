"""Dispatch frames to handlers: parse the header, check the version, and convert exceptions of
handlers to error responses.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from penstock.base.log_limit import LogLimit
from penstock.broker.errors import ErrorCode, code_of
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.request import (
    ConnectionInfo,
    LongResponse,
    RequestContext,
    Respond,
    Response,
)
from penstock.broker.network.request_meter import RequestMeter
from penstock.broker.quotas.clients import ClientQuotas
from penstock.broker.quotas.rates import Window
from penstock.broker.requests.authorization import is_broker
from penstock.broker.requests.lease import check_session
from penstock.broker.requests.long_requests import Decode, LongRequest, LongRequests
from penstock.broker.requests.node import Handler, InlineHandler, Node
from penstock.broker.requests.quotas import RequestLimits, is_of_brokers, work_of
from penstock.protocol import apis, framing
from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.errors import WireError
from penstock.protocol.primitives import Reader, Writer

log = structlog.get_logger(__name__)

_AT_ONCE: Final = (list, bytearray)
"""Types of immediately available responses. Checking for `Awaitable` instead would take 0.3 us
longer.
"""
_PRODUCE_PREFIX: Final = apis.PRODUCE.key.to_bytes(2, "big")

_NULL_IN_ERRORS: Final[Mapping[int, Sequence[str]]] = {
    apis.DESCRIBE_ACLS.key: ("error_message",),
    apis.DESCRIBE_CLIENT_QUOTAS.key: ("error_message", "entries"),
    apis.DESCRIBE_QUORUM.key: ("error_message",),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key: ("error_message",),
    apis.STREAMS_GROUP_HEARTBEAT.key: (
        "active_tasks",
        "standby_tasks",
        "warmup_tasks",
        "partitions_by_user_endpoint",
    ),
    apis.UPDATE_FEATURES.key: ("error_message",),
}
"""Fields that are null instead of empty in error responses."""
_CLOSED: Final = frozenset({apis.METADATA.key, apis.SASL_HANDSHAKE.key, apis.SASL_AUTHENTICATE.key})
"""APIs whose failures close the connection, so that clients connect to another broker or
authenticate again.
"""

_EMPTY_WITHOUT_FIELD: Final = frozenset({apis.DESCRIBE_LOG_DIRS.key})
"""APIs that return an empty response in versions without an error code, as in Kafka."""


def error_response(api: ApiSpec, version: int, code: int) -> object | None:
    """Return a response with this error, or None if this API version reports errors per item, which
    only the handler can do.
    """
    kind = getattr(api.codec, f"{api.name}Response")
    if api.key in _CLOSED or "error_code" not in kind.__struct_fields__:
        return None
    nulls: dict[str, None] = dict.fromkeys(_NULL_IN_ERRORS.get(api.key, ()))
    response: object = kind(error_code=code, **nulls)
    if api.key in _EMPTY_WITHOUT_FIELD:
        return response
    body = Writer()
    api.codec.encode_response(body, response, version)
    has_field = api.codec.decode_response(Reader(body), version).error_code == code
    return response if has_field else None


def encode_response(ctx: RequestContext, message: object) -> bytearray | LongResponse:
    """Encode a generated response message as a complete frame for this request. Responses to long
    requests are encoded later.
    """
    if code := getattr(message, "error_code", 0):
        ctx.meter.failed(ctx.api_key, code)
    encode = partial(
        framing.encode_response_frame,
        apis.APIS[ctx.api_key],
        ctx.api_version,
        ctx.correlation_id,
        CODECS[ctx.api_key].encode_response,
        message,
    )
    return LongResponse(encode) if ctx.is_long else encode()


class RequestDispatcher:
    """Implements `broker.network.dispatcher.Dispatcher` with tables of handlers. `inline` handlers
    respond through a callback and never become a task.

    An unknown API or version closes the connection, as in Kafka, except for ApiVersions. An
    exception in a handler becomes an error response if the API has a top-level error code;
    otherwise, the connection is closed. Log events that a client can cause are rate limited.
    """

    def __init__(
        self,
        node: Node,
        handlers: Mapping[int, Handler],
        inline: Mapping[int, InlineHandler],
        meter: RequestMeter | None = None,
        quotas: ClientQuotas | None = None,
    ) -> None:
        self._node = node
        self._quotas = ClientQuotas(Window()) if quotas is None else quotas
        self._limits = RequestLimits(self._quotas)
        self._meter = meter or RequestMeter()
        self._handlers = handlers
        self._inline = inline
        self._loop = asyncio.get_running_loop()
        self._log_limit = LogLimit()
        self._long = LongRequests()

    def close(self) -> None:
        self._long.close()

    def is_blocked(self, frame: bytearray) -> bool:
        storage = self._node.storage
        # A failed storage stays full forever, so Produce requests must then be rejected, not
        # delayed.
        return storage.is_full and not storage.fenced and frame.startswith(_PRODUCE_PREFIX)

    async def wait_unblocked(self) -> None:
        await self._node.storage.wait_for_room()

    def start(
        self, connection: ConnectionInfo, frame: bytearray, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        """See `broker.network.dispatcher.Dispatcher`. Raises WireError and CannotRespond, which
        close the connection.
        """
        header = framing.parse_header(frame)
        key = header.api.key
        view = memoryview(frame)
        ctx = RequestContext(
            key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            connection,
            view,
            header.body_offset,
            self._loop.time(),
            self._meter,
        )
        if self._quotas.is_active:
            respond = self._limits.begin(ctx, respond)
        inline = self._inline.get(key)
        if inline is not None:
            return self._run_inline(inline, ctx, respond)
        handler = self._handlers.get(key)
        if handler is None:
            raise CannotRespond(f"{header.api.name} is not served here")
        check_session(self._node, ctx)
        try:
            response = handler(self._node, ctx)
        except (WireError, CannotRespond):
            raise
        except LongRequest as long:
            work = self._respond_long(handler, ctx, long.decode)
            return work_of(ctx, self._finish(handler, ctx, work))
        except Exception as error:  # noqa: BLE001  # the boundary: every failure of a handler becomes a response
            respond(self._failed(ctx, error))
            return None
        if not isinstance(response, _AT_ONCE) and isinstance(response, Awaitable):
            return work_of(ctx, self._finish(handler, ctx, response))
        assert not isinstance(response, LongResponse), "what is made in one turn is short"
        respond(response)
        return None

    def _run_inline(
        self, handler: InlineHandler, ctx: RequestContext, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        try:
            handler(self._node, ctx, respond)
        except (WireError, CannotRespond):
            raise
        except LongRequest as long:
            # The connection does not start other requests in the meantime, so that Produce requests
            # keep their order.
            work = self._respond_long(partial(_as_task, handler), ctx, long.decode)
            return work_of(ctx, self._finish_inline(ctx, work))
        except Exception as error:
            self._log_failure(ctx, error)
            raise CannotRespond(f"{apis.APIS[ctx.api_key].name} failed") from error
        if ctx.quota is not None:
            ctx.quota.leave()
        return None

    async def _respond_long(
        self, handler: Handler, ctx: RequestContext, decode: Decode
    ) -> Response:
        """Handle a request that has not been decoded yet."""
        if is_of_brokers(ctx) and is_broker(self._node, ctx):
            return await self._respond_decoded(handler, ctx, decode)
        slot = await self._long.slot()
        ctx.on_wait = slot.free
        try:
            return await self._respond_decoded(handler, ctx, decode)
        finally:
            slot.free()

    async def _respond_decoded(
        self, handler: Handler, ctx: RequestContext, decode: Decode
    ) -> Response:
        await self._long.decode(ctx, decode)
        response = handler(self._node, ctx)
        if isinstance(response, Awaitable):
            response = await response
        return await self._long.encoded(ctx, response)

    async def _finish_inline(self, ctx: RequestContext, work: Awaitable[Response]) -> Response:
        try:
            return await work
        except (WireError, CannotRespond):
            raise
        except Exception as error:
            self._log_failure(ctx, error)
            raise CannotRespond(f"{apis.APIS[ctx.api_key].name} failed") from error

    async def _finish(
        self, handler: Handler, ctx: RequestContext, response: Awaitable[Response]
    ) -> Response:
        try:
            try:
                return await self._long.encoded(ctx, await response)
            except LongRequest as long:
                return await self._respond_long(handler, ctx, long.decode)
        except (WireError, CannotRespond):
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: every failure of a handler becomes a response
            return self._failed(ctx, error)

    def _failed(self, ctx: RequestContext, error: Exception) -> Response:
        code = code_of(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            self._log_failure(ctx, error)
        message = error_response(apis.APIS[ctx.api_key], ctx.api_version, code)
        if message is None:
            raise CannotRespond(
                f"{apis.APIS[ctx.api_key].name} failed: {code.name}: {error}"
            ) from error
        response = encode_response(ctx, message)
        return response.encode() if isinstance(response, LongResponse) else response

    def _log_failure(self, ctx: RequestContext, error: Exception) -> None:
        suppressed = self._log_limit.take(self._loop.time())
        if suppressed is not None:
            api = apis.APIS[ctx.api_key].name
            log.error(
                "request_failed",
                api=api,
                version=ctx.api_version,
                client_id=ctx.client_id,
                peer=ctx.connection.peer,
                suppressed_count=suppressed,
                exc_info=error,
            )


async def _as_task(handler: InlineHandler, node: Node, ctx: RequestContext) -> Response:
    """Run a handler that responds through a callback, and return its response."""
    responded: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def respond(response: Response) -> None:
        if not responded.done():  # the connection may have been closed
            responded.set_result(response)

    work = handler(node, ctx, respond)
    if work is not None:
        await work
    return await responded
