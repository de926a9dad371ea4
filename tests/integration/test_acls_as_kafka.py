"""Compare the responses to clients with few rights with the recorded ones of Apache Kafka 4.2:
every API under ten sets of ACLs. `make interop` compares the record with Kafka itself.
"""

import asyncio
from pathlib import Path

from tests.support.acl_rights import (
    cluster_with_acls,
    differences,
    recorded,
    responses_under_all_rights,
)


async def test_rights_count_as_in_kafka(tmp_path: Path) -> None:
    async with cluster_with_acls(tmp_path) as cluster:
        given = await asyncio.to_thread(responses_under_all_rights, cluster.bootstrap)
    assert not differences(recorded(), given), "\n".join(differences(recorded(), given))
