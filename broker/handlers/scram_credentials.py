"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): SCRAM and PLAIN users that
are stored in the metadata.

Responses contain mechanisms and iteration counts, never keys. This broker derives the keys from
salted passwords, so that passwords are neither sent to the controller nor logged.
"""

from collections import Counter
from typing import Final

from penstock.base.acls import Operation
from penstock.base.scram import ScramMechanism, credential_of
from penstock.broker.errors import ErrorCode, KafkaError, code_of, code_of_status
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import check_cluster, record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import Status
from penstock.controller.api.scram_messages import (
    AlterScramCredentials,
    ScramDeletion,
    ScramUpsertion,
)
from penstock.protocol.gen import alter_user_scram_credentials as altering
from penstock.protocol.gen.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    decode_request,
)

_TIMEOUT_S: Final = 30.0
_MECHANISMS: Final = frozenset(ScramMechanism)


async def handle_describe_user_scram_credentials(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    check_cluster(node, ctx, Operation.DESCRIBE)
    named = Counter([user.name for user in request.users or ()] or node.image.scram.users())
    results = await listed(_result(node, name, count) for name, count in named.items())
    return encode_response(
        ctx, DescribeUserScramCredentialsResponse(error_message="", results=results)
    )


def _result(node: Node, name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return DescribeUserScramCredentialsResult(
            name,
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request:"
            f" {name}",
        )
    credentials = node.image.scram.of(name)
    if not credentials:
        return DescribeUserScramCredentialsResult(
            name,
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {name}",
        )
    infos = [
        CredentialInfo(mechanism, credential.iterations)
        for mechanism, credential in sorted(credentials.items())
    ]
    return DescribeUserScramCredentialsResult(name, credential_infos=infos)


async def handle_alter_user_scram_credentials(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, altering.decode_request)
    requested = AlterScramCredentials(
        deletions=await listed(
            ScramDeletion(user=item.name, mechanism=item.mechanism) for item in request.deletions
        ),
        upsertions=await listed(_upsertion(item) for item in request.upsertions),
        forwarded_for=requester_of(node, ctx),
    )
    try:
        check_cluster(node, ctx, Operation.ALTER)
        altered = await node.client.alter_scram_credentials(requested, timeout_s=_TIMEOUT_S)
    except (ControllerError, KafkaError, TimeoutError) as error:
        users = [item.user for item in requested.deletions] + [
            item.user for item in requested.upsertions
        ]
        code, detail = code_of(error), str(error)
        results = await listed(
            altering.AlterUserScramCredentialsResult(user, code, detail)
            for user in dict.fromkeys(users)
        )
    else:
        done = [item.user for item in altered.results if item.status is Status.OK]
        record_change(node, ctx, "users_altered", done)
        results = await listed(
            altering.AlterUserScramCredentialsResult(
                item.user, code_of_status(item.status), item.detail or None
            )
            for item in altered.results
        )
    return encode_response(ctx, altering.AlterUserScramCredentialsResponse(results=results))


def _upsertion(item: altering.ScramCredentialUpsertion) -> ScramUpsertion:
    """Return the upsertion with the keys derived from the salted password. The keys are empty if
    they cannot be derived.
    """
    stored_key = server_key = b""
    if item.mechanism in _MECHANISMS and item.salted_password:
        mechanism = ScramMechanism(item.mechanism)
        salted = bytes(item.salted_password)
        _, stored_key, server_key, _ = credential_of(mechanism, salted, b"", item.iterations)
    return ScramUpsertion(
        user=item.name,
        mechanism=item.mechanism,
        salt=bytes(item.salt),
        stored_key=stored_key,
        server_key=server_key,
        iterations=item.iterations,
    )
