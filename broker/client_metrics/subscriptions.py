"""Determine which metrics a client pushes, and how often, from the subscriptions in the metadata
(KIP-714). Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from penstock.base.regular_expressions import compiled
from penstock.controller.metadata.client_metrics import (
    INTERVAL,
    INTERVAL_MS_DEFAULT,
    MATCH,
    METRICS,
    patterns_of,
)

ALL_METRICS: Final = "*"


class ClientIdentity(NamedTuple):
    """The client properties that subscriptions can match, named as in the patterns."""

    client_id: str
    client_instance_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


class ClientSubscription(NamedTuple):
    """The metrics that one client pushes."""

    subscription_id: int
    metrics: tuple[str, ...]
    """Prefixes of metric names. An empty tuple selects no metrics; `*` alone selects all."""
    interval_ms: int


def wanted_of(
    subscriptions: Iterable[Mapping[str, str]], identity: ClientIdentity, instance: UUID
) -> ClientSubscription:
    """Return the metrics of all subscriptions that match the client, with the shortest of their
    intervals, at most INTERVAL_MS_DEFAULT. subscriptions: the configs of each subscription in the
    metadata.

    A subscription matches if each of its patterns matches the whole property; if a property has
    several patterns, the last one applies. Brokers with the same metadata return the same
    subscription id, because a client may fetch it from one broker and push to another.
    """
    prefixes: set[str] = set()
    interval_ms = INTERVAL_MS_DEFAULT
    for configs in subscriptions:
        if not _matches(configs.get(MATCH, ""), identity):
            continue
        prefixes.update(filter(None, configs.get(METRICS, "").split(",")))
        interval_ms = min(interval_ms, int(configs.get(INTERVAL, INTERVAL_MS_DEFAULT)))
    metrics = (ALL_METRICS,) if ALL_METRICS in prefixes else tuple(sorted(prefixes))
    return ClientSubscription(
        _subscription_id(metrics, interval_ms, instance), metrics, interval_ms
    )


def _matches(match: str, identity: ClientIdentity) -> bool:
    return all(
        compiled(pattern).fullmatch(getattr(identity, name)) is not None
        for name, pattern in patterns_of(match).items()
    )


def _subscription_id(metrics: tuple[str, ...], interval_ms: int, instance: UUID) -> int:
    """Return a signed 32-bit number."""
    text = f"{instance.hex},{interval_ms},{','.join(metrics)}"
    number = crc32c(text.encode())
    return number - (1 << 32) if number >= 1 << 31 else number
