"""Manage SCRAM users over Kafka's protocol."""

import secrets
from typing import Final, NamedTuple

from penstock.base.scram import ScramMechanism, salted_password
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import check
from penstock.protocol.gen import alter_user_scram_credentials as altering
from penstock.protocol.gen import describe_user_scram_credentials as describing

_SALT_BYTES: Final = 26
_NOT_FOUND: Final = 91


class UserView(NamedTuple):
    """A user, with the iterations of each mechanism."""

    name: str
    mechanisms: dict[str, int]


def list_users(client: WireClient, *names: str) -> list[UserView]:
    """Return users, sorted by name, or all users if no names are given. Unknown users are
    omitted.
    """
    request = describing.DescribeUserScramCredentialsRequest(
        [describing.UserName(name) for name in names] or None
    )
    response = client.send_request(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        request,
        describing.DescribeUserScramCredentialsResponse,
    )
    check(response.error_code, response.error_message, "users cannot be listed")
    found: list[UserView] = []
    for result in response.results:
        if result.error_code != _NOT_FOUND:
            check(result.error_code, result.error_message, f"user {result.user!r}")
            infos = {
                ScramMechanism(info.mechanism).sasl_name: info.iterations
                for info in result.credential_infos
            }
            found.append(UserView(result.user, infos))
    return sorted(found)


def create_user(
    client: WireClient, name: str, password: str, mechanism: ScramMechanism, iterations: int
) -> None:
    """Create or change the credential of a user. The password is not sent."""
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    upsertion = altering.ScramCredentialUpsertion(name, mechanism, iterations, salt, salted)
    _alter(client, altering.AlterUserScramCredentialsRequest(upsertions=[upsertion]))


def delete_credential(client: WireClient, name: str, mechanism: ScramMechanism) -> None:
    deletion = altering.ScramCredentialDeletion(name, mechanism)
    _alter(client, altering.AlterUserScramCredentialsRequest(deletions=[deletion]))


def _alter(client: WireClient, request: altering.AlterUserScramCredentialsRequest) -> None:
    response = client.send_request(
        apis.ALTER_USER_SCRAM_CREDENTIALS, request, altering.AlterUserScramCredentialsResponse
    )
    for result in response.results:
        check(result.error_code, result.error_message, f"user {result.user!r} was not changed")
