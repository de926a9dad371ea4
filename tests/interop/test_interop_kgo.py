"""Run the tests of franz-go's package kgo against Penstock: produce, consume, groups of both
protocols, share groups and transactions.

`make test` runs all but the long tests, with few records. `make interop` sets KGO_TEST_CHAOS=1,
which breaks each connection of group members and producers after a second.
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
    # Same limit as in franz-go's CI, so that share group retries end when the tests expect it.
    *("--set", "group.share.delivery.count.limit=10"),
)
SLOW: Final = (
    "GroupETL|AckOnClose|TestIssue434|TestIssue337|TestPauseIssue|TestClient_Produce$|Test848Regex"
    # Of the transaction tests, one assignor per group protocol remains.
    "|TestTxnEtl/cooperative-sticky|TestTxnEtl/range/848"
)
NEED_OTHER_LISTENERS: Final = {"TestSCRAMAuth", "TestSCRAMAuthBadCredentials", "TestOAuthAuth"}
"""These skip: they require separate listeners, and one uses an unsigned token."""
OF_OLD_BROKERS: Final = {"TestIssueProduceBrokerTooOldFailsRecords"}
"""This skips on brokers with current Produce versions, such as Kafka 4.2."""
_RESULT: Final = re.compile(r"^--- (\w+): (\w+) ", re.MULTILINE)


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the test program; compile it if it is missing."""
    return built("ensure-kgo.sh", BUILD_S)


@pytest.mark.costly("more than a hundred tests run, on a cluster of three processes")
@pytest.mark.parametrize(
    ("records", "chaos", "arguments"),
    [
        pytest.param(1_000, "0", ("-test.skip", SLOW), id="short"),
        pytest.param(50_000, "1", (), id="chaos", marks=pytest.mark.long),
    ],
)
def test_kgo_tests_pass(
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
