"""Responses contain Penstock's own tagged fields only on request, because not every client skips
unknown tags.
"""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from penstock.protocol import apis
from penstock.protocol.apis import APIS, ApiSpec
from penstock.protocol.gen import describe_log_dirs, list_offsets, metadata
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.wire import wire_client
from tools.protocol.kio_schema import OWN_TAGS_FROM, load_message

TOPIC, DELETED = "tagged", "deleted"
LATEST = -1


def _own_fields(api: ApiSpec, direction: str) -> set[str]:
    return {
        item.name
        for struct in load_message(api, direction)
        for item in struct.fields
        if (item.tag or 0) >= OWN_TAGS_FROM
    }


def _end_of(partition: list_offsets.ListOffsetsPartition) -> list_offsets.ListOffsetsRequest:
    topic = list_offsets.ListOffsetsTopic(TOPIC, [partition])
    return list_offsets.ListOffsetsRequest(-1, topics=[topic])


REQUESTS: dict[int, tuple[object, object]] = {
    apis.DESCRIBE_LOG_DIRS.key: (
        describe_log_dirs.DescribeLogDirsRequest(None),
        describe_log_dirs.DescribeLogDirsRequest(None, details=True),
    ),
    apis.LIST_OFFSETS.key: (
        _end_of(list_offsets.ListOffsetsPartition(0, timestamp=LATEST)),
        _end_of(list_offsets.ListOffsetsPartition(0, timestamp=LATEST, fork_offset=LATEST)),
    ),
    apis.METADATA.key: (
        metadata.MetadataRequest(topics=None),
        metadata.MetadataRequest(topics=None, frozen_topics=True),
    ),
}
"""By API: a request as other clients send it, and one that requests Penstock's fields."""
BETWEEN_BROKERS = {apis.READ_SHARE_GROUP_STATE_SUMMARY.key}
"""These APIs need ClusterAction, and the field has a value only after a deletion and on request."""


def _values(response: Any, names: set[str]) -> Iterator[tuple[str, object]]:
    """Yield the values of Penstock's fields in a response, at any depth."""
    for name in getattr(response, "__struct_fields__", ()):
        value = getattr(response, name)
        if name in names:
            yield name, value
        for item in value if isinstance(value, list) else [value]:
            yield from _values(item, names)


def _defaults(api: ApiSpec) -> dict[str, object]:
    return {
        item.name: ast.literal_eval(item.default)
        for struct in load_message(api, "response")
        for item in struct.fields
        if (item.tag or 0) >= OWN_TAGS_FROM
    }


def test_every_response_with_own_fields_is_covered() -> None:
    with_own_fields = {key for key, api in APIS.items() if _own_fields(api, "response")}
    assert with_own_fields == REQUESTS.keys() | BETWEEN_BROKERS
    assert all(_own_fields(APIS[key], "request") for key in with_own_fields)


async def test_clients_get_own_fields_only_on_request(tmp_path: Path) -> None:
    async with Cluster(tmp_path, controller_settings={"delete_grace_ms": 60_000}) as cluster:
        await asyncio.to_thread(_check, cluster.bootstrap)


def _check(address: str) -> None:
    for name in (TOPIC, DELETED):
        create_topic(address, name, 1)
    produce(address, TOPIC, [b"value"], (0,))
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([DELETED])[DELETED].result(TIMEOUT_S)
    for key, requests in REQUESTS.items():
        api, defaults = APIS[key], _defaults(APIS[key])
        for version in range(api.flexible_from, api.max + 1):
            plain, asking = (_own_values(address, api, request, version) for request in requests)
            assert set(plain) <= set(defaults.items()), (api.name, version)
            assert set(asking) - set(defaults.items()), (api.name, version)


def _own_values(
    address: str, api: ApiSpec, request: object, version: int
) -> list[tuple[str, object]]:
    with wire_client(address) as client:
        response = client.send_request(api, request, object, version=version)
    return list(_values(response, _own_fields(api, "response")))
