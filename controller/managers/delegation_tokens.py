"""Create, renew and expire delegation tokens (KIP-48).

Expired tokens are kept for EXPIRED_KEPT_MS, so that an attempt to renew one fails with the right
error.
"""

from typing import Final

import msgspec

from penstock.base.ids import Millis
from penstock.controller.api.messages import Status
from penstock.controller.api.token_messages import (
    RENEWERS_MAX,
    CreateDelegationToken,
    DelegationTokenReply,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from penstock.controller.managers.result import Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    DelegationTokenRecord,
    DelegationTokenRemoved,
    Record,
)

TOKENS_MAX: Final = 10_000
REQUESTER_TOKENS_MAX: Final = TOKENS_MAX // 2
"""Maximum number of tokens created by one user. Only the owners and renewers of tokens can expire
them, so nobody else could make room.
"""
NAME_BYTES_MAX: Final = 1_000
EXPIRED_KEPT_MS: Final = 3_600_000
REMOVED_PER_TRANSACTION_MAX: Final = 1_000


def create_delegation_token(
    image: MetadataImage, request: CreateDelegationToken, now_ms: Millis
) -> Result[DelegationTokenReply]:
    known = image.delegation_tokens.get(request.token_id)
    if known is not None:
        return Result(value=DelegationTokenReply(token=known))  # the request is a retry
    names = (request.token_id, request.owner, request.requester, *request.renewers)
    problem = ""
    if len(request.renewers) > RENEWERS_MAX:
        problem = f"{len(request.renewers)} renewers; at most {RENEWERS_MAX} are allowed"
    elif max(len(name.encode()) for name in names) > NAME_BYTES_MAX:
        problem = f"a name has more than {NAME_BYTES_MAX} bytes"
    elif request.lifetime_ms <= 0 or request.period_ms <= 0:
        problem = "the lifetime and period of a token must be positive"
    elif len(image.delegation_tokens) >= TOKENS_MAX:
        problem = f"there are {TOKENS_MAX} delegation tokens; expire some first"
    elif _created_count(image, request.requester) >= REQUESTER_TOKENS_MAX:
        problem = (
            f"{request.requester} has created {REQUESTER_TOKENS_MAX} delegation tokens; expire some"
            " first"
        )
    if problem:
        return Result(status=Status.INVALID_REQUEST, detail=problem)
    max_ms = now_ms + request.lifetime_ms
    token = DelegationTokenRecord(
        request.token_id,
        request.owner,
        request.requester,
        request.renewers,
        now_ms,
        Millis(min(max_ms, now_ms + request.period_ms)),
        Millis(max_ms),
    )
    return Result([token], value=DelegationTokenReply(token=token))


def _created_count(image: MetadataImage, requester: str) -> int:
    return sum(token.requester == requester for token in image.delegation_tokens)


def renew_delegation_token(
    image: MetadataImage, request: RenewDelegationToken, now_ms: Millis
) -> Result[DelegationTokenReply]:
    token = _own(image, request)
    if isinstance(token, Result):
        return token
    if _is_over(token, now_ms):
        return _expired()
    return _ending(token, min(token.max_ms, now_ms + request.period_ms))


def expire_delegation_token(
    image: MetadataImage, request: ExpireDelegationToken, now_ms: Millis
) -> Result[DelegationTokenReply]:
    token = _own(image, request)
    if isinstance(token, Result):
        return token
    if request.period_ms < 0:
        removed = msgspec.structs.replace(token, expiry_ms=now_ms)
        return Result(
            [DelegationTokenRemoved(token.token_id)], value=DelegationTokenReply(token=removed)
        )
    if _is_over(token, now_ms):
        return _expired()
    return _ending(token, min(token.max_ms, now_ms + request.period_ms))


def remove_expired_tokens(image: MetadataImage, now_ms: Millis) -> list[Record]:
    """Return records that remove tokens EXPIRED_KEPT_MS after their expiry."""
    found: list[Record] = [
        DelegationTokenRemoved(token.token_id)
        for token in image.delegation_tokens
        if token.expiry_ms + EXPIRED_KEPT_MS < now_ms
    ]
    return found[:REMOVED_PER_TRANSACTION_MAX]


def _own(
    image: MetadataImage, request: RenewDelegationToken | ExpireDelegationToken
) -> DelegationTokenRecord | Result[DelegationTokenReply]:
    """Return the token, or the rejection if the principal must not change it."""
    token, principal = image.delegation_tokens.get(request.token_id), request.principal
    if token is None:
        return Result(status=Status.TOKEN_NOT_FOUND, detail="this delegation token does not exist")
    if principal == token.owner or principal in token.renewers:
        return token
    return Result(
        status=Status.TOKEN_OWNER_MISMATCH,
        detail=f"{principal} is neither the owner nor a renewer of the token",
    )


def _expired() -> Result[DelegationTokenReply]:
    return Result(status=Status.TOKEN_EXPIRED, detail="the delegation token has expired")


def _is_over(token: DelegationTokenRecord, now_ms: Millis) -> bool:
    return min(token.max_ms, token.expiry_ms) < now_ms


def _ending(token: DelegationTokenRecord, expiry_ms: int) -> Result[DelegationTokenReply]:
    changed = msgspec.structs.replace(token, expiry_ms=Millis(expiry_ms))
    return Result([changed], value=DelegationTokenReply(token=changed))
