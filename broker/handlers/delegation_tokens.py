"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken
(KIP-48). The broker generates ids and derives secrets (`broker.security.delegation_tokens`); the
controller validates the rest. Unlike in Kafka, only owners of type `User` are accepted, because
other owners would be authenticated as the user with the same name.
"""

from collections.abc import Collection
from typing import Final
from uuid import uuid4

from penstock.base.acls import Operation, ResourceType
from penstock.base.listeners import SecurityProtocol
from penstock.base.principal import ANONYMOUS, USER, Principal
from penstock.broker.errors import ErrorCode, KafkaError, code_of, kafka_error
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import allows, record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import sliced
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.token_messages import (
    RENEWERS_MAX,
    CreateDelegationToken,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from penstock.controller.metadata.records import DelegationTokenRecord
from penstock.protocol.gen import create_delegation_token as creating
from penstock.protocol.gen import describe_delegation_token as describing
from penstock.protocol.gen import expire_delegation_token as expiring
from penstock.protocol.gen import renew_delegation_token as renewing

_TIMEOUT_S: Final = 30.0
_REFUSED_AT_ONCE: Final = frozenset(
    {
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRINCIPAL_TYPE,
    }
)
"""Responses with these error codes contain -1 in their time fields; other errors contain 0, as in
Kafka.
"""


async def handle_create_delegation_token(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, creating.decode_request)
    requester = ctx.connection.principal
    owner = (
        Principal(request.owner_principal_type or "", request.owner_principal_name)
        if request.owner_principal_name
        else requester
    )
    response = creating.CreateDelegationTokenResponse(0, *owner, *requester)
    try:
        _check_channel(ctx)
        if owner != requester and not allows(
            node, ctx, Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
        ):
            raise kafka_error(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        if len(request.renewers) > RENEWERS_MAX:
            raise kafka_error(ErrorCode.INVALID_REQUEST)
        if owner.kind != USER or any(item.principal_type != USER for item in request.renewers):
            raise kafka_error(ErrorCode.INVALID_PRINCIPAL_TYPE)
        _check_on(node)
        renewers = [f"{USER}:{item.principal_name}" for item in request.renewers]
        token = await _create(node, ctx, owner, renewers, request.max_lifetime_ms)
    except (ControllerError, KafkaError, TimeoutError) as error:
        code = response.error_code = code_of(error)
        response.issue_timestamp_ms = response.expiry_timestamp_ms = _time_with(code)
        response.max_timestamp_ms = _time_with(code)
        return encode_response(ctx, response)
    response.issue_timestamp_ms = token.issue_ms
    response.expiry_timestamp_ms = token.expiry_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id = token.token_id
    response.hmac = node.delegation_tokens.hmac_of(token.token_id)
    record_change(node, ctx, "delegation_token_created", [f"{token.token_id} of {owner}"])
    return encode_response(ctx, response)


async def _create(
    node: Node,
    ctx: RequestContext,
    owner: Principal,
    renewers: list[str],
    lifetime_ms: int,
) -> DelegationTokenRecord:
    config = node.static_settings.security
    longest_ms = config.delegation_token_max_lifetime_ms
    request = CreateDelegationToken(
        token_id=str(uuid4()),
        owner=str(owner),
        requester=str(ctx.connection.principal),
        renewers=tuple(renewers),
        lifetime_ms=min(lifetime_ms, longest_ms) if lifetime_ms > 0 else longest_ms,
        period_ms=config.delegation_token_expiry_time_ms,
        forwarded_for=requester_of(node, ctx),
    )
    return (await node.client.create_delegation_token(request, timeout_s=_TIMEOUT_S)).token


async def handle_renew_delegation_token(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, renewing.decode_request)
    longest_ms = node.static_settings.security.delegation_token_expiry_time_ms
    period_ms = request.renew_period_ms
    response = renewing.RenewDelegationTokenResponse()
    try:
        token_id = await _shown_token(node, ctx, request.hmac)
        requested = RenewDelegationToken(
            token_id=token_id,
            principal=str(ctx.connection.principal),
            period_ms=min(period_ms, longest_ms) if period_ms > 0 else longest_ms,
            forwarded_for=requester_of(node, ctx),
        )
        token = (await node.client.renew_delegation_token(requested, timeout_s=_TIMEOUT_S)).token
    except (ControllerError, KafkaError, TimeoutError) as error:
        response.error_code = code_of(error)
        response.expiry_timestamp_ms = _time_with(response.error_code)
    else:
        response.expiry_timestamp_ms = token.expiry_ms
        record_change(node, ctx, "delegation_token_renewed", [f"{token_id} of {token.owner}"])
    return encode_response(ctx, response)


async def handle_expire_delegation_token(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, expiring.decode_request)
    response = expiring.ExpireDelegationTokenResponse()
    try:
        token_id = await _shown_token(node, ctx, request.hmac)
        requested = ExpireDelegationToken(
            token_id=token_id,
            principal=str(ctx.connection.principal),
            period_ms=request.expiry_time_period_ms,
            forwarded_for=requester_of(node, ctx),
        )
        token = (await node.client.expire_delegation_token(requested, timeout_s=_TIMEOUT_S)).token
    except (ControllerError, KafkaError, TimeoutError) as error:
        response.error_code = code_of(error)
        response.expiry_timestamp_ms = _time_with(response.error_code)
    else:
        response.expiry_timestamp_ms = token.expiry_ms
        record_change(node, ctx, "delegation_token_expired", [f"{token_id} of {token.owner}"])
    return encode_response(ctx, response)


async def handle_describe_delegation_token(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, describing.decode_request)
    owners = (
        None
        if request.owners is None
        else {
            f"{item.principal_type}:{item.principal_name}" async for item in sliced(request.owners)
        }
    )
    response = describing.DescribeDelegationTokenResponse()
    try:
        _check_channel(ctx)
        _check_on(node)
    except KafkaError as error:
        response.error_code = error.code
        return encode_response(ctx, response)
    response.tokens = [
        _described(node, token)
        async for token in sliced(list(node.image.delegation_tokens))
        if (owners is None or _is_of_any(token, owners)) and _may_describe(node, ctx, token)
    ]
    return encode_response(ctx, response)


def _is_of_any(token: DelegationTokenRecord, principals: Collection[str]) -> bool:
    return not {token.owner, token.requester, *token.renewers}.isdisjoint(principals)


def _may_describe(node: Node, ctx: RequestContext, token: DelegationTokenRecord) -> bool:
    """Return whether the client owns, created or may renew the token, or has permission to describe
    it.
    """
    if _is_of_any(token, {str(ctx.connection.principal)}):
        return True
    return allows(
        node, ctx, Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, logs=False
    ) or allows(
        node, ctx, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, logs=False
    )


def _described(node: Node, token: DelegationTokenRecord) -> describing.DescribedDelegationToken:
    return describing.DescribedDelegationToken(
        *_parts(token.owner),
        *_parts(token.requester),
        token.issue_ms,
        token.expiry_ms,
        token.max_ms,
        token.token_id,
        node.delegation_tokens.hmac_of(token.token_id),
        [
            describing.DescribedDelegationTokenRenewer(*_parts(renewer))
            for renewer in token.renewers
        ],
    )


def _parts(principal: str) -> tuple[str, str]:
    """Return the type and the name of a principal. The name may be empty."""
    kind, _, name = principal.partition(":")
    return kind, name


def _time_with(code: int) -> int:
    return -1 if code in _REFUSED_AT_ONCE else 0


def _check_channel(ctx: RequestContext) -> None:
    """Reject clients that are not authenticated, or that authenticated with a delegation token.
    Raises KafkaError.
    """
    connection = ctx.connection
    if (
        connection.security_protocol is SecurityProtocol.PLAINTEXT
        or connection.principal == ANONYMOUS
        or (connection.sasl is not None and connection.sasl.by_token)
    ):
        raise kafka_error(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _check_on(node: Node) -> None:
    if not node.delegation_tokens.are_on:
        raise kafka_error(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)


async def _shown_token(node: Node, ctx: RequestContext, shown: bytes) -> str:
    """Return the id of the token with this HMAC. Raises KafkaError."""
    _check_channel(ctx)
    _check_on(node)
    hmac = bytes(shown)
    async for token in sliced(list(node.image.delegation_tokens)):
        if node.delegation_tokens.is_of(token.token_id, hmac):
            return token.token_id
    raise kafka_error(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
