"""Client and address quotas, by entity (KIP-546, KIP-612). The manager enforces their limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.controller.metadata.records import QuotaRecord, QuotaTarget

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = frozenset({USER, CLIENT_ID, IP})

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CLIENT_QUOTAS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
"""Quotas of users and clients. Addresses can have only a connection rate."""

THROTTLE_MS_MAX: Final = (1 << 31) - 1
"""Maximum throttle time in a response: 24 days."""

Entity: TypeAlias = tuple[QuotaTarget, ...]
"""The components of a quota entity, ordered by type, without duplicates."""

_NOTHING: Mapping[str, float] = {}


def entity_text(entity: Entity) -> str:
    """Describe an entity in one line, for example `user=alice,client-id=<default>`."""
    return ",".join(f"{part.type}={part.name or '<default>'}" for part in entity)


@dataclass(slots=True)
class QuotasImage:
    _values: dict[Entity, dict[str, float]] = field(default_factory=dict[Entity, dict[str, float]])

    def of(self, entity: Entity) -> Mapping[str, float]:
        """Return the quotas of one entity by name; empty if the entity has none."""
        return self._values.get(entity, _NOTHING)

    def items(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """Yield the entities with their quotas."""
        yield from self._values.items()

    def __len__(self) -> int:
        """Return the number of entities."""
        return len(self._values)

    def records(self) -> Iterator[QuotaRecord]:
        """Yield a record for each quota."""
        for entity, values in self._values.items():
            for key, value in values.items():
                yield QuotaRecord(entity, key, value)

    def set(self, record: QuotaRecord) -> None:
        values = self._values.setdefault(record.entity, {})
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if not values:
            del self._values[record.entity]
