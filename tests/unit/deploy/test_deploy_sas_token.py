"""Nodes reject SAS tokens that do not expire before fences may be deleted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.deploy.errors import UsageError
from penstock.deploy.node.process import check_sas_token
from tests.support.waiting import PATIENCE_S

DAY_MS = 86_400_000
NOW_S = 1_798_761_600  # 2027-01-01
STORE = "az://acct/box"
LONG, SHORT = "se=2027-01-09T00%3A00%3A00Z&sig=SECRET", "se=2027-01-07T00%3A00%3A00Z&sig=SECRET"


@pytest.mark.parametrize(
    ("store", "environment", "retention_ms"),
    [
        (STORE, {"AZURE_STORAGE_SAS_TOKEN": LONG}, 7 * DAY_MS),
        (STORE, {"AZURE_STORAGE_SAS_TOKEN": SHORT}, DAY_MS),
        (f"{STORE}?sas_token={LONG.replace('%', '%25').replace('&', '%26')}", {}, 7 * DAY_MS),
    ],
)
def test_a_token_that_outlives_fences_is_rejected(
    store: str, environment: dict[str, str], retention_ms: int
) -> None:
    with pytest.raises(UsageError, match=r"wal\.fence\.retention\.ms") as caught:
        check_sas_token(store, retention_ms, environment, NOW_S)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("retention_ms", [7 * DAY_MS, None])
@pytest.mark.parametrize("token", ["si=policy&sig=SECRET", "sig=SECRET", "se=later&sig=SECRET"])
def test_a_token_without_a_readable_expiry_is_rejected(
    token: str, retention_ms: int | None
) -> None:
    """Brokers, which have no retention setting, reject it, too."""
    with pytest.raises(UsageError, match="has no expiry") as caught:
        check_sas_token(STORE, retention_ms, {"AZURE_STORAGE_SAS_TOKEN": token}, NOW_S)
    assert "SECRET" not in str(caught.value)


def test_an_unused_token_is_not_checked() -> None:
    token = {"AZURE_STORAGE_SAS_TOKEN": "si=policy&sig=x"}
    identity = {"AZURE_CLIENT_ID": "a", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": "f"}
    for others in ({"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}, identity):
        check_sas_token(STORE, DAY_MS, token | others, NOW_S)


def test_other_credentials_are_accepted() -> None:
    check_sas_token(STORE, None, {"AZURE_STORAGE_SAS_TOKEN": LONG}, NOW_S)
    check_sas_token(STORE, 7 * DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": SHORT}, NOW_S)
    check_sas_token(STORE, 10 * DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": LONG}, NOW_S)
    check_sas_token(f"{STORE}?account_key=a2V5", DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": LONG}, NOW_S)
    for other in ("memory:", "file:x", "s3://bucket", "gs://bucket"):
        check_sas_token(other, DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": LONG}, NOW_S)


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_both_roles_check_the_token(role: str, tmp_path: Path) -> None:
    token = {"AZURE_STORAGE_SAS_TOKEN": "si=policy&sig=SECRET"}
    variables = {"PENSTOCK_STORE": STORE, "PENSTOCK_METADATA_LOG_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "penstock.deploy.cli", role],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=os.environ | token | variables,
    )
    assert done.returncode == 2, done.stderr
    assert "has no expiry" in done.stderr
    assert "SECRET" not in done.stderr
