"""Run the tests of franz-go's package kgo against Penstock: producing, consuming, groups of both
protocols, share groups and transactions.

`make test` runs all but the long ones, with few records. `make interop` runs them with
KGO_TEST_CHAOS=1: each connection of a group's members and producers breaks after a second.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from penstock.deploy.local.handle import LocalCluster
from tests.support.missing import built

pytestmark = [pytest.mark.timeout(3_000)]

ROOT: Final = Path(__file__).parents[2]
BUILD_S: Final = 900
RUN_S: Final = 1_800
SETTINGS: Final = (
    *("--brokers", "3", "--no-console", "--log-level", "error"),
    # Tolerate slow responses of a busy machine.
    *("--set", "broker.session.timeout.ms=30000", "--set", "broker.session.grace.ms=30000"),
    # The tests expect retries of a share group to end as often as Kafka's limit in franz-go's CI.
    *("--set", "group.share.delivery.count.limit=10"),
)
SLOW: Final = (
    "GroupETL|AckOnClose|TestIssue434|TestIssue337|TestPauseIssue|TestClient_Produce$|Test848Regex"
    # Of transactions, one assignor of each group protocol is left.
    "|TestTxnEtl/cooperative-sticky|TestTxnEtl/range/848"
)
NEED_OTHER_LISTENERS: Final = {"TestSCRAMAuth", "TestSCRAMAuthBadCredentials", "TestOAuthAuth"}
"""They skip: they log in on listeners of their own, and one with an unsigned token."""
OF_OLD_BROKERS: Final = {"TestIssueProduceBrokerTooOldFailsRecords"}
"""It skips on brokers with current versions of Produce, such as Kafka 4.2."""
_RESULT: Final = re.compile(r"^--- (\w+): (\w+) ", re.MULTILINE)


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the program of the tests."""
    return built("ensure-kgo.sh", BUILD_S)


@pytest.mark.costly("more than a hundred tests run, on a cluster of three processes")
@pytest.mark.parametrize(
    ("records", "chaos", "arguments"),
    [
        pytest.param(1_000, "0", ("-test.skip", SLOW), id="short"),
        pytest.param(50_000, "1", (), id="chaos", marks=pytest.mark.long),
    ],
)
def test_tests_of_kgo_pass(
    program: Path, tmp_path: Path, records: int, chaos: str, arguments: tuple[str, ...]
) -> None:
    with LocalCluster((*SETTINGS, "--store", f"file:{tmp_path}/store")) as cluster:
        variables = {
            "KGO_SEEDS": cluster.bootstrap,
            "KGO_TEST_CHAOS": chaos,
            "KGO_TEST_RECORDS": str(records),
            "KGO_TEST_RF": "3",
            "KGO_LOG_LEVEL": "none",
        }
        done = subprocess.run(
            [program, "-test.v", f"-test.timeout={RUN_S}s", *arguments],
            cwd=program.parent,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=RUN_S + 60,
            check=False,
        )
    results = {name: result for result, name in _RESULT.findall(done.stdout)}
    skipped = {name for name, result in results.items() if result == "SKIP"}
    (tmp_path / "output").write_text(done.stdout)
    failed = [name for name, result in results.items() if result == "FAIL"]
    assert done.returncode == 0, f"{failed or done.stdout[-5_000:]}: see {tmp_path}/output"
    assert skipped == NEED_OTHER_LISTENERS | OF_OLD_BROKERS
    assert {"TestTxnEtl", "TestShareGroup", "TestGroupSimple"} <= results.keys()
