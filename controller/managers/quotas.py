"""Change the quotas of users, clients and addresses (KIP-546, KIP-612).

Validation and error messages are those of Kafka, except that NaN is rejected and there are
additional limits. Brokers check that host names can be resolved.
"""

import math
from collections.abc import Mapping
from typing import Final

from penstock.controller.api.messages import Status
from penstock.controller.api.quota_messages import (
    ALTERATIONS_MAX,
    CHANGES_MAX,
    AlterQuotas,
    QuotaAlteration,
    QuotaChange,
    QuotaResult,
    QuotasAltered,
)
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.quotas import (
    CLIENT_QUOTAS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    ENTITY_TYPES,
    IP,
    PRODUCER_BYTE_RATE,
    Entity,
)
from penstock.controller.metadata.records import QuotaRecord, Record

ENTITIES_MAX: Final = 20_000
NAME_BYTES_MAX: Final = 32_767
_WHOLE: Final[Mapping[str, tuple[str, int]]] = {
    PRODUCER_BYTE_RATE: ("a LONG", (1 << 63) - 1),
    CONSUMER_BYTE_RATE: ("a LONG", (1 << 63) - 1),
    CONNECTION_CREATION_RATE: ("an INT", (1 << 31) - 1),
}
"""Integer quotas with their type in Kafka and their maximum."""
_EPSILON: Final = 1e-6
"""Maximum deviation of a value from an integer, as in Kafka."""


def alter_quotas(image: MetadataImage, request: AlterQuotas) -> Result[QuotasAltered]:
    """Return one result per alteration. Setting the current value creates no record."""
    change_count = sum(len(item.changes) for item in request.alterations)
    if len(request.alterations) > ALTERATIONS_MAX or change_count > CHANGES_MAX:
        return Result(
            status=Status.INVALID_REQUEST,
            detail=(
                f"{len(request.alterations)} entities with {change_count} quotas; at most"
                f" {ALTERATIONS_MAX} with {CHANGES_MAX} are allowed: split them"
            ),
        )
    records: list[Record] = []
    results: dict[Entity, QuotaResult] = {}
    entity_count = len(image.quotas)
    for item in request.alterations:
        entity = item.entity
        try:
            _check_once(item, is_repeated=entity in results)
            _check_entity(entity)
            changed = _changes(image, item)
            if changed and not image.quotas.of(entity):
                entity_count += 1
                _check_room(entity_count)
        except Refused as refused:
            results[entity] = QuotaResult(
                entity=entity, status=refused.status, detail=refused.detail
            )
            continue
        records += changed
        results[entity] = QuotaResult(entity=entity)
    return Result(
        [] if request.validate_only else records,
        value=QuotasAltered(results=list(results.values())),
    )


def _refused(detail: str) -> Refused:
    return Refused(Status.INVALID_REQUEST, detail)


def _check_once(item: QuotaAlteration, *, is_repeated: bool) -> None:
    """Reject a duplicate entity or quota. Earlier changes of the entity are applied, as in
    Kafka.
    """
    keys = [change.key for change in item.changes]
    if is_repeated or len(set(keys)) < len(keys):
        shown = ", ".join(
            f"{part.type}={'null' if part.name is None else part.name}" for part in item.entity
        )
        raise _refused(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")


def _check_entity(entity: Entity) -> None:
    if not entity:
        raise _refused("Invalid empty client quota entity")
    for kind, name in ((part.type, part.name) for part in entity):
        if kind not in ENTITY_TYPES:
            raise _refused(f"Unhandled client quota entity type: {kind[:100]}")
        if name is not None and not name:
            raise _refused(f"Empty {kind} not supported")
        if name is not None and len(name.encode()) > NAME_BYTES_MAX:
            raise _refused(f"The name of the {kind} has more than {NAME_BYTES_MAX} bytes")
    if len(entity) > 1 and any(part.type == IP for part in entity):
        raise _refused(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or"
            " ClientId"
        )


def _check_room(entity_count: int) -> None:
    if entity_count > ENTITIES_MAX:
        raise _refused(f"{ENTITIES_MAX} entities have quotas already: delete those of some first")


def _changes(image: MetadataImage, item: QuotaAlteration) -> list[QuotaRecord]:
    """Return the records that change the quotas of one entity. Raises Refused."""
    allowed = (
        (CONNECTION_CREATION_RATE,)
        if any(part.type == IP for part in item.entity)
        else CLIENT_QUOTAS
    )
    present = image.quotas.of(item.entity)
    records: list[QuotaRecord] = []
    for change in item.changes:
        if change.value is not None:
            _check_value(allowed, change)
        if present.get(change.key) != change.value:
            records.append(QuotaRecord(item.entity, change.key, change.value))
    return records


def _check_value(allowed: tuple[str, ...], change: QuotaChange) -> None:
    key, value = change.key, change.value
    assert value is not None
    if key not in allowed:
        raise _refused(f"Invalid configuration key {key[:100]}")
    if not value > 0:  # also rejects NaN
        raise _refused(f"Quota {key} must be greater than 0")
    if key in _WHOLE:
        kind, largest = _WHOLE[key]
        if value > largest:
            raise _refused(f"Proposed value for {key} is too large for {kind}.")
        if abs(math.floor(value + _EPSILON) - value) > _EPSILON:
            raise _refused(f"{key} cannot be a fractional value.")
