"""Run tests of librdkafka itself against Penstock with SASL and ACLs: its admin client, users of
SCRAM and ACLs, groups, transactions, and topics that come late or anew.

They are those of Debian's source package, compiled once. `librdkafka/kafka-4.2.patch` says where
they expect what Kafka 4.2 does otherwise.
"""

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from penstock.broker.security.config import STANDARD_AUTHORIZER
from tests.support.missing import missing
from tests.support.secure_cluster import BROKER_USER, create_user, secure_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_000)]

ROOT: Final = Path(__file__).parents[2]
BUILD_S: Final = 1_800
RUN_S: Final = 800
KAFKA_VERSION: Final = "4.2.0"
USER, PASSWORD = "tester", "tester secret"
"""No super user: the tests create ACLs for it, and look at what they allow."""
PATIENT: Final = {"session_timeout_ms": 30_000, "session_grace_ms": 30_000}
DEFAULT: Final = (
    "0019_list_groups",
    "0044_partition_cnt",
    "0080_admin_ut",
    "0081_admin",
    "0103_transactions",
    "0109_auto_create_topics",
    "0112_assign_unknown_part",
    "0128_sasl_callback_queue",
    "0135_sasl_credentials",
    "0140_commit_metadata",
    "0142_reauthentication",
)
"""Tests of the scenario `default`."""
WITHOUT_NEW_TOPICS: Final = ("0107_topic_recreate", "0111_delay_create_topics")
"""Tests of the scenario `noautocreate`."""
_RESULT: Final = re.compile(r"^\|\S* (\d{4}_\w+) +\| +(\w+) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def tests() -> Path:
    """Return the folder with the program of the tests."""
    done = subprocess.run(
        [ROOT / "deploy/ensure-librdkafka.sh"],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode:
        missing(done.stderr.strip())
    return Path(done.stdout.strip())


@pytest.mark.parametrize(
    ("scenario", "names"),
    [("default", DEFAULT), ("noautocreate", WITHOUT_NEW_TOPICS)],
    ids=["default", "noautocreate"],
)
async def test_tests_of_librdkafka_pass(
    tests: Path, tmp_path: Path, scenario: str, names: tuple[str, ...]
) -> None:
    security = {
        "ssl_keystore_location": "",
        "ssl_truststore_location": "",
        "authorizer": STANDARD_AUTHORIZER,
        "super_users": f"User:{BROKER_USER}",
        "allow_everyone_if_no_acl_found": True,
        "connections_max_reauth_ms": 10_000,
    }
    async with secure_cluster(
        tmp_path,
        "SASL_PLAINTEXT",
        brokers=3,
        security=security,
        controller_settings=PATIENT,
        auto_create_topics_enable=scenario == "default",
    ) as cluster:
        await create_user(cluster, USER, PASSWORD)
        config = tmp_path / "test.conf"
        config.write_text(
            f"bootstrap.servers={cluster.bootstrap}\n"
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.username={USER}\nsasl.password={PASSWORD}\n"
        )
        output = await asyncio.to_thread(run, tests, config, scenario, names)
    results = dict(_RESULT.findall(output))
    assert results == dict.fromkeys(results, "PASSED"), output[-20_000:]
    assert results.keys() >= {*names}, output[-20_000:]


def run(tests: Path, config: Path, scenario: str, names: tuple[str, ...]) -> str:
    """Run the tests, one at a time, and return what they print."""
    variables = {
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_SCENARIO": scenario,
        "TESTS": ",".join(name[:4] for name in names),
        "LD_LIBRARY_PATH": f"{tests.parent}/src:{tests.parent}/src-cpp",
    }
    done = subprocess.run(
        [tests / "test-runner", "-p1"],
        cwd=tests,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=RUN_S,
        check=False,
    )
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout.decode(errors="replace"))
