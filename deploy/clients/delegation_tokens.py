"""Manage delegation tokens over Kafka's protocol (KIP-48)."""

import base64
from typing import Final, NamedTuple

from penstock.base.principal import USER, Principal
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import check
from penstock.protocol.gen import create_delegation_token as creating
from penstock.protocol.gen import describe_delegation_token as describing
from penstock.protocol.gen import expire_delegation_token as expiring
from penstock.protocol.gen import renew_delegation_token as renewing

DEFAULT_PERIOD: Final = -1
"""The longest period allowed by the brokers' settings."""


class TokenView(NamedTuple):
    """A delegation token. password: the SCRAM password of the token. Times are in milliseconds
    since 1970.
    """

    token_id: str
    password: str
    owner: str
    requester: str
    renewers: list[str]
    issued_ms: int
    expires_ms: int
    max_ms: int


def create_token(
    client: WireClient, owner: str | None, renewers: list[str], lifetime_ms: int
) -> TokenView:
    """Create a token. owner: name of a user; None for the client itself."""
    request = creating.CreateDelegationTokenRequest(
        None if owner is None else USER,
        owner,
        [creating.CreatableRenewers(USER, renewer) for renewer in renewers],
        lifetime_ms,
    )
    response = client.send_request(
        apis.CREATE_DELEGATION_TOKEN, request, creating.CreateDelegationTokenResponse
    )
    check(response.error_code, None, "no token was created")
    return TokenView(
        response.token_id,
        _password(response.hmac),
        _principal(response.principal_type, response.principal_name),
        _principal(
            response.token_requester_principal_type, response.token_requester_principal_name
        ),
        [_principal(USER, renewer) for renewer in renewers],
        response.issue_timestamp_ms,
        response.expiry_timestamp_ms,
        response.max_timestamp_ms,
    )


def list_tokens(client: WireClient, owner: str | None = None) -> list[TokenView]:
    """Return the tokens that the client may see, oldest first. owner: only tokens that this user
    owns, created or may renew; None for all.
    """
    owners = None if owner is None else [describing.DescribeDelegationTokenOwner(USER, owner)]
    response = client.send_request(
        apis.DESCRIBE_DELEGATION_TOKEN,
        describing.DescribeDelegationTokenRequest(owners),
        describing.DescribeDelegationTokenResponse,
    )
    check(response.error_code, None, "tokens cannot be listed")
    found = [
        TokenView(
            token.token_id,
            _password(token.hmac),
            _principal(token.principal_type, token.principal_name),
            _principal(token.token_requester_principal_type, token.token_requester_principal_name),
            [_principal(each.principal_type, each.principal_name) for each in token.renewers],
            token.issue_timestamp,
            token.expiry_timestamp,
            token.max_timestamp,
        )
        for token in response.tokens
    ]
    return sorted(found, key=lambda token: token.issued_ms)


def renew_token(client: WireClient, token: TokenView, period_ms: int) -> int:
    """Renew a token, and return its new expiry."""
    request = renewing.RenewDelegationTokenRequest(base64.b64decode(token.password), period_ms)
    response = client.send_request(
        apis.RENEW_DELEGATION_TOKEN, request, renewing.RenewDelegationTokenResponse
    )
    check(response.error_code, None, f"token {token.token_id} was not renewed")
    return response.expiry_timestamp_ms


def expire_token(client: WireClient, token: TokenView) -> None:
    """Expire a token: new logins with it fail immediately."""
    request = expiring.ExpireDelegationTokenRequest(base64.b64decode(token.password), -1)
    response = client.send_request(
        apis.EXPIRE_DELEGATION_TOKEN, request, expiring.ExpireDelegationTokenResponse
    )
    check(response.error_code, None, f"token {token.token_id} was not expired")


def _principal(kind: str, name: str) -> str:
    return str(Principal(kind, name))


def _password(hmac: bytes) -> str:
    return base64.b64encode(hmac).decode()
