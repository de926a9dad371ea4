"""Compare responses to clients with limited rights with recorded responses of Apache Kafka 4.2, for
every API under ten sets of ACLs. `make interop` verifies the recording against Kafka.
"""

import asyncio
from pathlib import Path

from tests.support.acl_rights import (
    cluster_with_acls,
    differences,
    recorded,
    responses_under_all_rights,
)


async def test_responses_under_limited_rights_match_apache_kafka(tmp_path: Path) -> None:
    async with cluster_with_acls(tmp_path) as cluster:
        given = await asyncio.to_thread(responses_under_all_rights, cluster.bootstrap)
    assert not differences(recorded(), given), "\n".join(differences(recorded(), given))
