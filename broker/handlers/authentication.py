"""A dispatcher that forwards only requests of authenticated clients, like Kafka's
SaslServerAuthenticator.

On listeners without SASL, it forwards all requests, except that SaslHandshake and SaslAuthenticate
fail.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog

from penstock.base.clock import wall_ms
from penstock.base.log_levels import AUDIT
from penstock.base.log_limit import LogLimit
from penstock.broker.errors import ErrorCode
from penstock.broker.network.dispatcher import CannotRespond, Dispatcher
from penstock.broker.network.request import ConnectionInfo, RequestContext, Respond, Response
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.node import Node
from penstock.broker.security.access import ClientAccess
from penstock.broker.security.exchange import Challenge, CheckPassword, CheckToken, Done, Step
from penstock.broker.security.oauthbearer import OAuthBearerServer
from penstock.broker.security.sasl import SaslPhase, SaslState
from penstock.broker.security.tokens import ScopeMissing
from penstock.protocol import apis, framing
from penstock.protocol.gen import sasl_authenticate, sasl_handshake
from penstock.protocol.primitives import ELEMENTS_AT_ONCE_MAX, Reader
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

log = structlog.get_logger(__name__)
audit_log = structlog.get_logger(AUDIT)

_Message = TypeVar("_Message")

_KEY_BYTES: Final = 2
_SIZE_BYTES: Final = 4
_ILLEGAL_STATE: Final = "SaslAuthenticate request received after successful authentication"


def handle_sasl_handshake(node: Node, ctx: RequestContext) -> Response:
    """Reject an unexpected SaslHandshake."""
    _decoded(ctx, sasl_handshake.decode_request)
    return encode_response(
        ctx, sasl_handshake.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    )


def handle_sasl_authenticate(node: Node, ctx: RequestContext) -> Response:
    """Reject an unexpected SaslAuthenticate."""
    _decoded(ctx, sasl_authenticate.decode_request)
    return encode_response(
        ctx,
        sasl_authenticate.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_ILLEGAL_STATE
        ),
    )


def _decoded(ctx: RequestContext, decode: Callable[[Reader, int], _Message]) -> _Message:
    """Decode the request. Requests with many tagged fields are rejected, to limit the work that
    unauthenticated clients can cause. Raises WireError.
    """
    return framing.decode_body(
        decode, ctx.frame, ctx.body_offset, ctx.api_version, ELEMENTS_AT_ONCE_MAX
    )


class AuthenticatingDispatcher:
    """Implements `broker.network.dispatcher.Dispatcher`, wrapping another dispatcher.

    Before authentication, a connection may only send ApiVersions and authentication requests; any
    other request closes it. Every failure of an exchange, including bugs, rejects the client. The
    error response is delayed by `connection.failed.authentication.delay.ms`, then the connection
    closes. Tokens and passwords are never logged.
    """

    def __init__(self, access: ClientAccess, inner: Dispatcher) -> None:
        self._access = access
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._log_limit = LogLimit()

    def is_blocked(self, frame: bytearray) -> bool:
        return self._inner.is_blocked(frame)

    async def wait_unblocked(self) -> None:
        await self._inner.wait_unblocked()

    def start(
        self, connection: ConnectionInfo, frame: bytearray, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        """See `broker.network.dispatcher.Dispatcher`."""
        sasl = connection.sasl
        if sasl is None:
            return self._inner.start(connection, frame, respond)
        if sasl.takes_bare_tokens:
            return self._bare_token(connection, sasl, bytes(frame))
        key = int.from_bytes(frame[:_KEY_BYTES], "big")
        if sasl.phase is SaslPhase.COMPLETE and not self._begins_reauthentication(sasl, key):
            if sasl.is_expired(self._loop.time()):
                raise CannotRespond("the client did not authenticate again in time")
            return self._inner.start(connection, frame, respond)
        return self._authenticate(connection, sasl, key, frame, respond)

    def _begins_reauthentication(self, sasl: SaslState, key: int) -> bool:
        return key == apis.SASL_HANDSHAKE.key and sasl.begin_reauthentication(self._loop.time())

    def _authenticate(
        self,
        connection: ConnectionInfo,
        sasl: SaslState,
        key: int,
        frame: bytearray,
        respond: Respond,
    ) -> Coroutine[Any, Any, Response] | None:
        """Handle a request from a client that is not authenticated or is reauthenticating."""
        if sasl.phase is SaslPhase.TOKENS and key == apis.SASL_AUTHENTICATE.key:
            return self._token(sasl, self._context(connection, frame))
        if sasl.phase is SaslPhase.HANDSHAKE:
            if key == apis.SASL_HANDSHAKE.key:
                return self._handshake(sasl, self._context(connection, frame), respond)
            if key == apis.API_VERSIONS.key:
                return self._inner.start(connection, frame, respond)
        raise CannotRespond(f"unexpected request (API key {key}) during SASL authentication")

    # --- requests ---------------------------------------------------------------------------------

    def _context(self, connection: ConnectionInfo, frame: bytearray) -> RequestContext:
        header = framing.parse_header(frame)
        return RequestContext(
            header.api.key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            connection,
            memoryview(frame),
            header.body_offset,
            self._loop.time(),
        )

    def _handshake(
        self, sasl: SaslState, ctx: RequestContext, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        request = _decoded(ctx, sasl_handshake.decode_request)
        is_known = sasl.handshake(request.mechanism, ctx.api_version)
        response = sasl_handshake.SaslHandshakeResponse(mechanisms=list(sasl.mechanisms))
        if is_known:
            respond(encode_response(ctx, response))
            return None
        response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._log_failure(ctx.connection, f"unsupported mechanism {request.mechanism[:100]!r}")
        return self._refuse(ctx.connection, encode_response(ctx, response))

    async def _token(self, sasl: SaslState, ctx: RequestContext) -> Response:
        """Handle a SaslAuthenticate request."""
        request = _decoded(ctx, sasl_authenticate.decode_request)
        try:
            data, lifetime_ms = await self._receive(ctx.connection, sasl, bytes(request.auth_bytes))
        except AuthenticationFailed as error:
            response = sasl_authenticate.SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=sasl.fail(error)
            )
            self._log_failure(ctx.connection, str(error), sasl.mechanism)
            return await self._refuse(ctx.connection, encode_response(ctx, response))
        response = sasl_authenticate.SaslAuthenticateResponse(
            error_message=None, auth_bytes=data, session_lifetime_ms=lifetime_ms
        )
        return encode_response(ctx, response)

    async def _bare_token(
        self, connection: ConnectionInfo, sasl: SaslState, token: bytes
    ) -> Response:
        """Handle a token without a request header, which clients send after a SaslHandshake v0."""
        try:
            data, _ = await self._receive(connection, sasl, token)
        except AuthenticationFailed as error:
            sasl.fail(error)
            self._log_failure(connection, str(error), sasl.mechanism)
            return await self._refuse(connection, None)
        return len(data).to_bytes(_SIZE_BYTES, "big") + data

    async def _refuse(self, connection: ConnectionInfo, response: Response) -> Response:
        """Return the error response after a delay, and then close the connection."""
        await asyncio.sleep(self._access.config.failed_authentication_delay_ms / 1_000)
        self._loop.call_soon(connection.close_quietly)
        return response

    # --- steps ------------------------------------------------------------------------------------

    async def _receive(
        self, connection: ConnectionInfo, sasl: SaslState, token: bytes
    ) -> tuple[bytes, int]:
        """Process a token. Return the response and the session lifetime in ms. Raises
        AuthenticationFailed.
        """
        try:
            return await self._taken(connection, sasl, token)
        except AuthenticationFailed:
            raise
        except Exception as error:
            suppressed = self._log_limit.take(self._loop.time())
            if suppressed is not None:
                log.error(
                    "authentication_error",
                    peer=connection.peer,
                    mechanism=sasl.mechanism,
                    suppressed_count=suppressed,
                    exc_info=error,
                )
            raise AuthenticationFailed("internal error, see the log") from error

    async def _taken(
        self, connection: ConnectionInfo, sasl: SaslState, token: bytes
    ) -> tuple[bytes, int]:
        step = await self._checked(connection, sasl, sasl.receive(token))
        if not isinstance(step, Done):
            return step.data, 0
        lifetime_ms = sasl.complete(step, now=self._loop.time(), now_ms=wall_ms())
        connection.authenticated(sasl.principal)
        return step.data, lifetime_ms

    async def _checked(
        self, connection: ConnectionInfo, sasl: SaslState, step: Step
    ) -> Challenge | Done:
        """Run the asynchronous checks of authentication. Raises AuthenticationFailed."""
        if isinstance(step, CheckPassword):
            await self._access.users.check_password(step.user, step.password)
            return Done(step.user)
        if not isinstance(step, CheckToken):
            return step
        exchange, keys = sasl.exchange, self._access.listener(connection.listener).keys
        assert isinstance(exchange, OAuthBearerServer)
        assert keys is not None, "SecurityConfig requires a URL of keys"
        try:
            token = await keys.verify(step.token)
        except AuthenticationFailed as error:
            self._log_failure(connection, str(error), sasl.mechanism)
            scopes = error.required if isinstance(error, ScopeMissing) else ()
            return exchange.refuse(scopes)  # if it fails here, the client has already responded
        exchange.check_user(token.user)
        return Done(token.user, expires_ms=token.expires_ms)

    def _log_failure(self, connection: ConnectionInfo, reason: str, mechanism: str = "") -> None:
        self._access.failed_count += 1
        suppressed = self._log_limit.take(self._loop.time())
        if suppressed is not None:
            audit_log.warning(
                "authentication_failed",
                peer=connection.peer,
                listener=connection.listener,
                mechanism=mechanism,
                reason=reason,
                suppressed_count=suppressed,
            )
