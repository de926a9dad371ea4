"""kafkajs, a Node.js client, gets the same results from Penstock as from Apache Kafka 4.2.

`clients/kafkajs.js` contains the checks.
"""

import asyncio
from pathlib import Path

import pytest

from penstock.base.acls import STANDARD_AUTHORIZER
from tests.support.cluster import Cluster
from tests.support.kafkajs import install_kafkajs, run_kafkajs
from tests.support.secure_cluster import SecureFiles, create_user, secure_cluster

CHECKS = (
    *("topics", "configs", "cluster", "produce", "group", "transactions", "offsets", "seek"),
    *("unknown", "moves", "acls"),
)
READ = 3
"""The code of the operation in kafkajs."""


@pytest.fixture(scope="session", autouse=True)
def kafkajs() -> None:
    install_kafkajs()


async def test_kafkajs_gets_the_same_results_as_from_kafka(cluster: Cluster, peer: str) -> None:
    """Covers producers, rebalancing groups, transactions and the admin client."""
    await compare(cluster, peer, *CHECKS)


@pytest.mark.long
async def test_kafkajs_resets_offsets(cluster: Cluster, peer: str) -> None:
    await compare(cluster, peer, "reset")


async def compare(cluster: Cluster, peer: str, *checks: str) -> None:
    expected, found = await asyncio.gather(
        *(asyncio.to_thread(run_kafkajs, address, *checks) for address in (peer, cluster.bootstrap))
    )
    assert found.keys() == {*checks}
    for check in checks:
        assert found[check] == expected[check], check
        assert "error" not in found[check], check


async def test_kafkajs_uses_scram_over_tls_and_acls(tmp_path: Path) -> None:
    """The expected responses are those of Kafka 4.2 with an authorizer."""
    files = SecureFiles(tmp_path / "security")
    security = {"authorizer": STANDARD_AUTHORIZER, "allow_everyone_if_no_acl_found": True}
    async with secure_cluster(tmp_path, "SASL_SSL", files=files, security=security) as cluster:
        await create_user(cluster, "alice", "secret")
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            login = {"mechanism": mechanism, "username": "alice", "password": "secret"}
            found = await asyncio.to_thread(
                run_kafkajs,
                cluster.bootstrap,
                *("login", "acls"),
                ssl={"ca": files.truststore.read_text()},
                sasl=login,
            )
            assert len(found["login"]["read"]) == 3
            assert found["acls"] == {
                "created": True,
                "described": [["js-acls", [["User:js", READ]]]],
                "deleted": [[0, 1]],
                "after": [],
            }
