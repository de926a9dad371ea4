"""Manage quotas over Kafka's protocol."""

from collections.abc import Mapping
from math import isfinite
from typing import Final

import msgspec

from penstock.controller.metadata.quotas import CLIENT_ID, IP, USER
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import check
from penstock.protocol.gen import alter_client_quotas as altering
from penstock.protocol.gen import describe_client_quotas as describing

DEFAULT: Final = "<default>"
"""Text that represents the default of a type."""


class QuotaView(msgspec.Struct, frozen=True):
    """The quotas of an entity. entity: names by type, None for the default. quotas: by name."""

    entity: dict[str, str | None]
    quotas: dict[str, float]


def shown(entity: Mapping[str, str | None]) -> str:
    kinds = [kind for kind in (USER, CLIENT_ID, IP) if kind in entity]
    names = [(kind, entity[kind]) for kind in kinds]
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in names)


def parse_value(text: str) -> float:
    """Return the value of a quota. Raises ValueError, also for NaN and infinity."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value


_EXACT, _DEFAULT = 0, 1


def list_quotas(client: WireClient, names: Mapping[str, str | None]) -> list[QuotaView]:
    """Return the quotas of entities with all of these names, in a stable order."""
    components = [
        describing.ComponentData(kind, _DEFAULT if name is None else _EXACT, name)
        for kind, name in names.items()
    ]
    response = client.send_request(
        apis.DESCRIBE_CLIENT_QUOTAS,
        describing.DescribeClientQuotasRequest(components),
        describing.DescribeClientQuotasResponse,
    )
    check(response.error_code, response.error_message, "quotas cannot be listed")
    found = [
        QuotaView(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda view: shown(view.entity))


def alter_quotas(
    client: WireClient, names: Mapping[str, str | None], values: Mapping[str, float | None]
) -> None:
    """Set quotas of one entity, or remove those with None. Raises KafkaFailed."""
    entry = altering.EntryData(
        [altering.EntityData(kind, name) for kind, name in names.items()],
        [altering.OpData(key, value or 0.0, value is None) for key, value in values.items()],
    )
    response = client.send_request(
        apis.ALTER_CLIENT_QUOTAS,
        altering.AlterClientQuotasRequest([entry]),
        altering.AlterClientQuotasResponse,
    )
    for result in response.entries:
        check(result.error_code, result.error_message, f"quotas of {shown(names)} were not changed")
