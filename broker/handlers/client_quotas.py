"""DescribeClientQuotas and AlterClientQuotas: quotas of users, client ids and addresses (KIP-546,
KIP-612).

Validation and error messages follow Kafka. The broker resolves host names, and the controller
validates everything else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode, KafkaError, code_of, code_of_status
from penstock.broker.network.hosts import resolve
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import check_cluster, record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import Status
from penstock.controller.api.quota_messages import AlterQuotas, QuotaAlteration, QuotaChange
from penstock.controller.metadata.quotas import (
    CLIENT_ID,
    ENTITY_TYPES,
    IP,
    USER,
    Entity,
    entity_text,
)
from penstock.controller.metadata.records import QuotaTarget
from penstock.protocol.gen import alter_client_quotas as altering
from penstock.protocol.gen.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
    decode_request,
)

_TIMEOUT_S: Final = 30.0


# --- describing -----------------------------------------------------------------------------------


class _Match(IntEnum):
    """Matches one entity by name, the default entity, or any entity of its type."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class _FilterRefused(Exception):
    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Filter:
    """exact: names by entity type, None for the default entity. types: entity types with any
    name.
    """

    exact: Mapping[str, str | None]
    types: frozenset[str]
    is_strict: bool

    def matches(self, entity: Entity) -> bool:
        """Return whether the entity has all of these components and, in strict mode, no others."""
        names = {part.type: part.name for part in entity}
        wanted = len(self.exact) + len(self.types)
        if self.is_strict and (not wanted or len(names) != wanted):
            return False
        return self.types <= names.keys() and all(
            kind in names and names[kind] == name for kind, name in self.exact.items()
        )


def handle_describe_client_quotas(node: Node, ctx: RequestContext) -> Response:
    """Return the quotas of the matching entities, or an error if the filter is invalid."""
    request = decoded(ctx, decode_request)
    check_cluster(node, ctx, Operation.DESCRIBE_CONFIGS)
    try:
        wanted = _filter(request)
    except _FilterRefused as refused:
        response = DescribeClientQuotasResponse(
            error_code=refused.code, error_message=str(refused), entries=None
        )
        return encode_response(ctx, response)
    entries = [
        EntryData(
            [EntityData(part.type, part.name) for part in entity],
            [ValueData(key, value) for key, value in sorted(values.items())],
        )
        for entity, values in node.image.quotas.items()
        if wanted.matches(entity)
    ]
    return encode_response(ctx, DescribeClientQuotasResponse(error_message="", entries=entries))


def _filter(request: DescribeClientQuotasRequest) -> _Filter:
    """Parse the filter. Raises _FilterRefused."""
    exact: dict[str, str | None] = {}
    types: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise _FilterRefused("Invalid empty entity type.")
        if kind in exact or kind in types:
            message = f"Entity type {kind} cannot appear more than once in the filter."
            raise _FilterRefused(message)
        if kind not in ENTITY_TYPES:
            message = f"Unsupported entity type {kind[:100]}"
            raise _FilterRefused(message, ErrorCode.UNSUPPORTED_VERSION)
        _check_match(component)
        if component.match_type == _Match.SPECIFIED:
            types.add(kind)
        else:
            exact[kind] = component.match
    named = {*exact, *types}
    if IP in named and named & {USER, CLIENT_ID}:
        raise _FilterRefused(
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return _Filter(exact, frozenset(types), request.strict)


def _check_match(component: ComponentData) -> None:
    try:
        match = _Match(component.match_type)
    except ValueError:
        raise _FilterRefused(f"Unknown match type {component.match_type}") from None
    if match is _Match.EXACT and component.match is None:
        raise _FilterRefused("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if match is not _Match.EXACT and component.match is not None:
        message = f"Request specified MATCH_TYPE_{match.name}, but also specified a match string."
        raise _FilterRefused(message)


# --- altering -------------------------------------------------------------------------------------


async def handle_alter_client_quotas(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, altering.decode_request)
    alterations = await listed(_alteration(entry) for entry in request.entries)
    try:
        check_cluster(node, ctx, Operation.ALTER_CONFIGS)
        results = await _altered(node, ctx, alterations, validate_only=request.validate_only)
    except (ControllerError, KafkaError, TimeoutError) as error:
        code, detail = code_of(error), str(error)
        results = {item.entity: (code, detail) for item in alterations}
    if not request.validate_only:
        done = [entity_text(entity) for entity, (code, _) in results.items() if not code]
        record_change(node, ctx, "quotas_altered", done)
    entries = await listed(
        altering.ResponseEntryData(
            code,
            detail or None,
            [altering.ResponseEntityData(part.type, part.name) for part in entity],
        )
        for entity, (code, detail) in results.items()
    )
    return encode_response(ctx, altering.AlterClientQuotasResponse(entries=entries))


def _alteration(entry: altering.EntryData) -> QuotaAlteration:
    """Return the alteration of one entity. If an entity type is repeated, the last name is used, as
    in Kafka.
    """
    names = {part.entity_type: part.entity_name for part in entry.entity}
    return QuotaAlteration(
        entity=tuple(QuotaTarget(kind, name) for kind, name in sorted(names.items())),
        changes=[
            QuotaChange(key=item.key, value=None if item.remove else item.value)
            for item in entry.ops
        ],
    )


async def _altered(
    node: Node,
    ctx: RequestContext,
    alterations: Sequence[QuotaAlteration],
    *,
    validate_only: bool,
) -> dict[Entity, tuple[ErrorCode, str]]:
    """Alter quotas. Return the error code and message by entity. Raises ControllerError,
    TimeoutError.
    """
    unknown = await _unknown_hosts(alterations)
    results = {
        entity: (ErrorCode.INVALID_REQUEST, f"{host} is not a valid IP or resolvable host.")
        for entity, host in unknown.items()
    }
    requested = AlterQuotas(
        alterations=[item for item in alterations if item.entity not in unknown],
        validate_only=validate_only,
        forwarded_for=requester_of(node, ctx),
    )
    if requested.alterations:
        altered = await node.client.alter_quotas(requested, timeout_s=_TIMEOUT_S)
        for item in altered.results:
            code = ErrorCode.NONE if item.status is Status.OK else code_of_status(item.status)
            results[item.entity] = code, item.detail
    return results


async def _unknown_hosts(alterations: Sequence[QuotaAlteration]) -> dict[Entity, str]:
    """Return the host names that cannot be resolved, by entity."""
    hosts = {
        item.entity: item.entity[0].name or ""
        for item in alterations
        if len(item.entity) == 1 and item.entity[0].type == IP and item.entity[0].name
    }
    found = await resolve(hosts.values())
    return {entity: host for entity, host in hosts.items() if not found[host]}
