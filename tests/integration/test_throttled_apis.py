"""With an exhausted quota, every API is still handled, and its response contains the
throttle time.
"""

import asyncio
from pathlib import Path
from uuid import UUID

from penstock.protocol import apis
from penstock.protocol.gen import alter_client_quotas as altering
from penstock.protocol.throttle import FIRST_FROM, WITHOUT
from tests.support.acl_requests import HIDDEN, SEEN, questions, share_state_questions
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.host_client import HostClient


async def test_every_response_contains_the_throttle_time(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        for name in (SEEN, HIDDEN):
            await asyncio.to_thread(create_topic, cluster.bootstrap, name)
        entry = altering.EntryData(
            [altering.EntityData("user", "ANONYMOUS")],
            [altering.OpData("request_percentage", 1e-6)],
        )
        request = altering.AlterClientQuotasRequest([entry])
        await asyncio.to_thread(send_request, cluster.bootstrap, apis.ALTER_CLIENT_QUOTAS, request)
        image = cluster.broker.image
        found = {name: image.topics.by_name(name) for name in (SEEN, HIDDEN)}
        ids = {name: topic.topic_id for name, topic in found.items() if topic is not None}
        silent = await asyncio.to_thread(_silent, cluster.bootstrap, ids)
        assert silent == []


def _silent(bootstrap: str, ids: dict[str, UUID]) -> list[str]:
    """Return the requests whose responses have a throttle time field without a value."""
    silent: list[str] = []
    for question in (*questions(ids), *share_state_questions(ids[HIDDEN])):
        api = question.api
        version = api.max if question.version is None else question.version
        with HostClient(bootstrap) as client:
            response = client.send_request(api, question.request, question.version)
        has_field = api == apis.PRODUCE or api.key not in WITHOUT
        if has_field and version >= FIRST_FROM.get(api.key, 0):
            of_brokers = api == apis.ADD_PARTITIONS_TO_TXN and version >= 4
            if not of_brokers and not 0 < response["throttle_time_ms"] <= 1_000:
                silent.append(f"{question.name}: {response['throttle_time_ms']}")
    return silent
