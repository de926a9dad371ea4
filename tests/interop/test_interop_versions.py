"""The Kafka 4.2 API versions in the reference are those that a broker of Kafka 4.2 advertises."""

import asyncio
from pathlib import Path

from penstock.broker.handlers.table import INLINE, make_handlers
from penstock.protocol import apis
from penstock.protocol.gen import api_versions
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tools.reference.kafka_4_2 import KAFKA_APIS

Versions = dict[int, tuple[int, int]]


def _announced(address: str) -> Versions:
    request = api_versions.ApiVersionsRequest("tests", "1")
    found = send_request(address, apis.API_VERSIONS, request)["api_keys"]
    return {api["api_key"]: (api["min_version"], api["max_version"]) for api in found}


async def test_kafka_advertises_the_api_versions_in_the_reference(peer: str) -> None:
    found = await asyncio.to_thread(_announced, peer)
    assert found == {key: (api.first, api.last) for key, api in KAFKA_APIS.items()}


async def test_brokers_advertise_exactly_the_served_apis_with_the_versions_of_kafka(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        found = await asyncio.to_thread(_announced, cluster.bootstrap)
    assert found.keys() == {*make_handlers(), *INLINE}
    assert found == {key: (KAFKA_APIS[key].first, KAFKA_APIS[key].last) for key in found}
